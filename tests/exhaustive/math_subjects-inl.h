// The functions of fast/math/math-inl.h behind one signature, array in, array out, for every compiled target,
// with their references and limits. For tests: besides the four functions there are variants with a planted
// bug, which every check has to report.
//
// A source file that includes this is compiled once per target: it names itself in HWY_TARGET_INCLUDE, then
// includes fast/math/simd.h and hwy/foreach_target.h, then this header.

#if defined(SUMZERO_TESTS_MATH_SUBJECTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SUMZERO_TESTS_MATH_SUBJECTS_INL_H_
#undef SUMZERO_TESTS_MATH_SUBJECTS_INL_H_
#else
#define SUMZERO_TESTS_MATH_SUBJECTS_INL_H_
#endif

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "fast/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sumzero::fast::test::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace math = sumzero::fast::HWY_NAMESPACE;

// c3 off by 2^-17 of itself (float), 2^-46 (double): a relative error of |r|^3 / 6 times that, up to 2^-24.2
// = 0.9 u and 2^-53.2 = 0.9 u, on top of what the sound kernel has.
struct PlantedExpF32 : math::ExpConstants<float> {
  static constexpr float c3 = math::ExpConstants<float>::c3 * (1 + 0x1p-17f);
};
struct PlantedExpF64 : math::ExpConstants<double> {
  static constexpr double c3 = math::ExpConstants<double>::c3 * (1 + 0x1p-46);
};

struct Exp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return math::Exp(d, x);
  }
};
struct ExpNonPositive {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return math::ExpNonPositive(d, x);
  }
};
struct ExpM1 {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return math::ExpM1(d, x);
  }
};
struct Log1p {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return math::Log1p(d, x);
  }
};
struct Log {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    return math::Log(d, x);
  }
};
struct PlantedExp {
  template <class D, class V>
  HWY_INLINE V operator()(D d, V x) const {
    using Planted = std::conditional_t<std::same_as<hn::TFromD<D>, float>, PlantedExpF32, PlantedExpF64>;
    return math::ExpWith<Planted>(d, x);
  }
};

// n is a multiple of 16, the largest number of lanes.
template <class Function, typename T>
HWY_INLINE void ForEach(const T* HWY_RESTRICT in, T* HWY_RESTRICT out, size_t n) {
  const hn::ScalableTag<T> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(Function()(d, hn::LoadU(d, in + i)), d, out + i);
}

void ExpF32(const float* in, float* out, size_t n) {
  ForEach<Exp>(in, out, n);
}
void ExpF64(const double* in, double* out, size_t n) {
  ForEach<Exp>(in, out, n);
}
void ExpNonPositiveF32(const float* in, float* out, size_t n) {
  ForEach<ExpNonPositive>(in, out, n);
}
void ExpNonPositiveF64(const double* in, double* out, size_t n) {
  ForEach<ExpNonPositive>(in, out, n);
}
void ExpM1F32(const float* in, float* out, size_t n) {
  ForEach<ExpM1>(in, out, n);
}
void ExpM1F64(const double* in, double* out, size_t n) {
  ForEach<ExpM1>(in, out, n);
}
void Log1pF32(const float* in, float* out, size_t n) {
  ForEach<Log1p>(in, out, n);
}
void Log1pF64(const double* in, double* out, size_t n) {
  ForEach<Log1p>(in, out, n);
}
void LogF32(const float* in, float* out, size_t n) {
  ForEach<Log>(in, out, n);
}
void LogF64(const double* in, double* out, size_t n) {
  ForEach<Log>(in, out, n);
}
void PlantedExpRunF32(const float* in, float* out, size_t n) {
  ForEach<PlantedExp>(in, out, n);
}
void PlantedExpRunF64(const double* in, double* out, size_t n) {
  ForEach<PlantedExp>(in, out, n);
}

}  // namespace sumzero::fast::test::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SUMZERO_TESTS_MATH_SUBJECTS_INL_H_

#if HWY_ONCE && !defined(SUMZERO_TESTS_MATH_SUBJECTS_TABLE)
#define SUMZERO_TESTS_MATH_SUBJECTS_TABLE

#include <mpfr.h>

#include <array>
#include <cmath>
#include <string_view>

#include "fast/math/generated/limits.h"

namespace sumzero::fast::test {
namespace {

HWY_EXPORT(ExpF32);
HWY_EXPORT(ExpF64);
HWY_EXPORT(ExpNonPositiveF32);
HWY_EXPORT(ExpNonPositiveF64);
HWY_EXPORT(ExpM1F32);
HWY_EXPORT(ExpM1F64);
HWY_EXPORT(Log1pF32);
HWY_EXPORT(Log1pF64);
HWY_EXPORT(LogF32);
HWY_EXPORT(LogF64);
HWY_EXPORT(PlantedExpRunF32);
HWY_EXPORT(PlantedExpRunF64);

// Chosen at every call, because a test switches targets between calls.
#define SUMZERO_DISPATCH(name, type) \
  [](const type* in, type* out, size_t n) { HWY_DYNAMIC_DISPATCH(name)(in, out, n); }

struct Subject {
  std::string_view name;
  void (*run_f32)(const float*, float*, size_t);
  void (*run_f64)(const double*, double*, size_t);
  double (*reference)(double);  // for float subjects: correct to one ulp of double
  int (*exact)(mpfr_t result, mpfr_srcptr x, mpfr_rnd_t mode);  // correctly rounded at any precision
  double max_ulp_f32;
  double max_ulp_f64;

  void Run(const float* in, float* out, size_t n) const { run_f32(in, out, n); }
  void Run(const double* in, double* out, size_t n) const { run_f64(in, out, n); }
  double MaxUlp(float) const { return max_ulp_f32; }
  double MaxUlp(double) const { return max_ulp_f64; }
};

constexpr std::array kSubjects = {
    Subject{"exp", SUMZERO_DISPATCH(ExpF32, float), SUMZERO_DISPATCH(ExpF64, double),
            [](double x) { return std::exp(x); }, mpfr_exp, kExpMaxUlpF32, kExpMaxUlpF64},
    Subject{"expm1", SUMZERO_DISPATCH(ExpM1F32, float), SUMZERO_DISPATCH(ExpM1F64, double),
            [](double x) { return std::expm1(x); }, mpfr_expm1, kExpm1MaxUlpF32, kExpm1MaxUlpF64},
    Subject{"log1p", SUMZERO_DISPATCH(Log1pF32, float), SUMZERO_DISPATCH(Log1pF64, double),
            [](double x) { return std::log1p(x); }, mpfr_log1p, kLog1pMaxUlpF32, kLog1pMaxUlpF64},
    Subject{"log", SUMZERO_DISPATCH(LogF32, float), SUMZERO_DISPATCH(LogF64, double),
            [](double x) { return std::log(x); }, mpfr_log, kLogMaxUlpF32, kLogMaxUlpF64},
};

// Judged against Exp, bit for bit.
constexpr Subject kExpNonPositive = {"exp_non_positive",
                                     SUMZERO_DISPATCH(ExpNonPositiveF32, float),
                                     SUMZERO_DISPATCH(ExpNonPositiveF64, double),
                                     [](double x) { return std::exp(x); },
                                     mpfr_exp,
                                     kExpMaxUlpF32,
                                     kExpMaxUlpF64};

// Must be rejected by every check of accuracy.
constexpr Subject kPlantedExp = {"exp_with_planted_bug",
                                 SUMZERO_DISPATCH(PlantedExpRunF32, float),
                                 SUMZERO_DISPATCH(PlantedExpRunF64, double),
                                 [](double x) { return std::exp(x); },
                                 mpfr_exp,
                                 kExpMaxUlpF32,
                                 kExpMaxUlpF64};

// The subject of that name, or nullptr.
inline const Subject* FindSubject(std::string_view name) {
  for (const Subject& subject : kSubjects) {
    if (subject.name == name) return &subject;
  }
  if (name == kExpNonPositive.name) return &kExpNonPositive;
  if (name == kPlantedExp.name) return &kPlantedExp;
  return nullptr;
}

}  // namespace
}  // namespace sumzero::fast::test

#endif  // HWY_ONCE
