// Inputs for the accuracy tests of fast/math: where each function is hard, and every binade of where it
// varies.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sumzero::fast::test {

// Appends value and the numbers up to `steps` places below and above it.
template <typename T>
void AppendNeighbourhood(std::vector<T>& samples, T value, int steps) {
  T below = value, above = value;
  samples.push_back(value);
  for (int i = 0; i < steps; ++i) {
    samples.push_back(below = std::nextafter(below, -std::numeric_limits<T>::infinity()));
    samples.push_back(above = std::nextafter(above, std::numeric_limits<T>::infinity()));
  }
}

// A number with a uniformly distributed exponent and significand, subnormals included, and the given sign.
template <typename T>
T AnyBinade(std::mt19937_64& random, bool negative) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const T x =
      std::bit_cast<T>(static_cast<Bits>(static_cast<Bits>(random()) & ~(Bits{1} << (8 * sizeof(T) - 1))));
  if (!std::isfinite(x)) return AnyBinade<T>(random, negative);
  return negative ? -x : x;
}

// The hard inputs of exp, expm1, log1p or log, then at least `count` random ones; together a multiple of 16.
// The same seed gives the same inputs.
template <typename T>
std::vector<T> Samples(std::string_view function, size_t count, uint64_t seed) {
  using Limits = std::numeric_limits<T>;
  constexpr int kSteps = 200;
  const bool exponential = function == "exp" || function == "expm1";
  std::vector<T> samples;
  if (exponential) {
    // Reduction boundaries (k + 1/2) ln 2, the thresholds of overflow, of subnormal and of zero results, and
    // of -1.
    const T largest = std::log(Limits::max()), smallest = std::log(Limits::min()),
            zero = std::log(Limits::denorm_min());
    for (const T x :
         {T{0}, largest, smallest, zero, zero - std::log(T{2}), std::log(Limits::epsilon()), T{1}, T{-1}}) {
      AppendNeighbourhood(samples, x, kSteps);
    }
    for (int k = -1080; k <= 1030; ++k) {
      AppendNeighbourhood(samples, static_cast<T>((k + 0.5) * std::log(2.0)), 4);
      AppendNeighbourhood(samples, static_cast<T>(k * std::log(2.0)), 2);
    }
  } else {
    // The zero of the function, the end of the domain, and both ends of the significand's interval in every
    // binade.
    const T offset = function == "log1p" ? 1 : 0;
    for (const T x : {T{0}, T{1}, T{-0.5}, T{-1}, Limits::min(), Limits::max()}) {
      AppendNeighbourhood(samples, x, kSteps);
    }
    for (int e = Limits::min_exponent - Limits::digits; e < Limits::max_exponent; ++e) {
      for (const T m : {T{1}, T{2} / 3, std::sqrt(T{0.5}), T{4} / 3, std::sqrt(T{2})}) {
        AppendNeighbourhood(samples, std::ldexp(m, e) - offset, 2);
      }
    }
  }
  // Where the function varies: half of it spread evenly, half over all binades.
  std::mt19937_64 random(seed);
  const T span = exponential ? std::log(Limits::max()) * T{1.06} : T{4};
  std::uniform_real_distribution<T> even(exponential ? -span : T{0}, span), near(T{-1}, T{1}),
      boundary(T{-0.75}, T{0.75});
  const size_t enough = samples.size() + count;
  while (samples.size() < enough || samples.size() % 16 != 0) {
    switch (samples.size() % 4) {
      case 0:
        samples.push_back(AnyBinade<T>(random, random() % 2 != 0));
        break;
      case 1:
        samples.push_back(function == "log" ? 1 + near(random) : near(random));
        break;
      case 2:
        samples.push_back(even(random));
        break;
      default: {
        // Small and medium sizes of both signs, a few binades around 1.
        const T x = std::ldexp(1 + std::fabs(near(random)), static_cast<int>(random() % 32) - 26);
        samples.push_back(function == "log" ? x : boundary(random) < 0 ? -x : x);
      }
    }
  }
  return samples;
}

}  // namespace sumzero::fast::test
