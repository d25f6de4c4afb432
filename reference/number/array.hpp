// Rows of numbers. Balls are stored as two arrays, midpoints and radii, so that loops over a row run on whole vectors.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "reference/number/ball.hpp"

#pragma omp declare simd notinbranch
extern "C" double exp(double) noexcept;

namespace sumzero {

class BallArray {
 public:
  std::size_t size() const { return mid_.size(); }
  void resize(std::size_t n) { mid_.resize(n), rad_.resize(n); }

  /// Takes the place of a Ball&.
  struct Entry {
    double &mid, &rad;
    operator Ball() const { return {mid, rad}; }
    Entry& operator=(const Ball& value) {
      mid = value.mid, rad = value.rad;
      return *this;
    }
    Entry& operator=(const Entry& other) { return *this = Ball(other); }
  };
  Ball operator[](std::size_t j) const { return {mid_[j], rad_[j]}; }
  Entry operator[](std::size_t j) { return {mid_[j], rad_[j]}; }

  const double* mid() const { return mid_.data(); }
  const double* rad() const { return rad_.data(); }
  double* mid() { return mid_.data(); }
  double* rad() { return rad_.data(); }

 private:
  std::vector<double> mid_, rad_;
};

/// A row of any number type of the reference.
template <class N>
using Array = std::conditional_t<std::is_same_v<N, Ball>, BallArray, std::vector<N>>;

/// body(j) for 0 <= j < n, where no iteration reads what another one writes.
template <class Body>
inline void each(std::size_t n, Body body) {
#pragma GCC ivdep
  for (std::size_t j = 0; j < n; ++j) body(j);
}

/// Four doubles at a time; the compiler maps them to the vectors of its target.
using Lanes = double __attribute__((vector_size(32)));
using LaneMask = std::int64_t __attribute__((vector_size(32)));
constexpr std::size_t lane_count = 4;
inline void load(const double* from, Lanes& to) { std::memcpy(&to, from, sizeof(to)); }

/// Runs `work`, with all that can be inlined into it compiled for the widest vectors of this machine. Results depend on
/// them only through the C library's exponential: no target here fuses multiply-adds, and sums have fixed lanes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
template <class Work>
__attribute__((target("avx2"), flatten, noinline)) void on_avx2(Work work) {
  work();
}
template <class Work>
void on_widest_vectors(Work work) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) on_avx2(work);
  else work();
}
#else
template <class Work>
void on_widest_vectors(Work work) {
  work();
}
#endif

/// out[j] = exp(in[j]).
template <class N>
void exp_each(const std::vector<N>& in, std::vector<N>& out) {
  for (std::size_t j = 0; j < in.size(); ++j) out[j] = exp(in[j]);
}
/// The vector exponential of the C library errs by at most 4 ulp, 8u; charged as 10u (tests/unit/number_test.cpp).
inline void exp_each(const BallArray& in, BallArray& out) {
  const std::size_t n = in.size();
  const double *mid = in.mid(), *rad = in.rad();
  double *out_mid = out.mid(), *out_rad = out.rad();
  bool narrow = true;
  for (std::size_t j = 0; j < n; ++j) narrow &= rad[j] <= 1;
  if (!narrow) {
    for (std::size_t j = 0; j < n; ++j) out[j] = exp(in[j]);
    return;
  }
#pragma omp simd
  for (std::size_t j = 0; j < n; ++j) {
    const double value = ::exp(mid[j]), growth = rad[j] + rad[j] * rad[j];
    out_mid[j] = value;
    out_rad[j] = value * (growth + 10 * Ball::u * (1 + growth)) * Ball::outward + Ball::floor;
  }
}

/// Memory of this thread for rows, kept between calls. Behind a call, because the compiler would look up the address of
/// a thread_local again at every use.
template <class T>
__attribute__((noinline)) T& thread_scratch() {
  thread_local T scratch;
  return scratch;
}

}  // namespace sumzero
