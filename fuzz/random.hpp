// Random numbers of recipes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sumzero {

/// SplitMix64 with the few distributions that cases need; the same numbers on every platform.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  bool chance(double p) { return uniform() < p; }

 private:
  std::uint64_t state_;
};

inline double upstream_value(int kind, std::size_t j, std::size_t hot, Random& random) {
  switch (kind) {
    case 0: return 1;
    case 1: return random.normal();
    case 2: return j == hot ? -1 : 0;
    case 3: return std::ldexp(random.normal(), static_cast<int>(random.below(21)) - 10);
    case 4: return -0.375;
    default: return random.uniform(-1, 1);
  }
}

}  // namespace sumzero
