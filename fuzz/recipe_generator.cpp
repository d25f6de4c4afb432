#include "fuzz/recipe_generator.hpp"

#include <rapidcheck.h>

namespace sumzero {
namespace {

/// Sizes cluster at powers of two and three times powers of two, one more and one less, and at the smallest numbers.
rc::Gen<int> classes_generator(const std::string& stratum) {
  const auto near_power = [](int lowest, int highest) {
    return rc::gen::map(rc::gen::tuple(rc::gen::inRange(lowest, highest + 1), rc::gen::inRange(-1, 2), rc::gen::inRange(0, 3)),
                        [](const std::tuple<int, int, int>& t) {
                          const auto [exponent, delta, three] = t;
                          return std::max(1, (1 << exponent) * (three == 2 ? 3 : 2) / 2 + delta);
                        });
  };
  if (stratum == "long") return near_power(8, 12);
  if (stratum == "dimension") return rc::gen::weightedOneOf<int>({{1, rc::gen::inRange(1, 40)}, {2, near_power(0, 10)}});
  return rc::gen::weightedOneOf<int>({{3, rc::gen::inRange(1, 6)}, {3, rc::gen::inRange(1, 80)}, {1, near_power(4, 10)}});
}

/// Keys cluster around the tiles of kernels.
rc::Gen<int> keys_generator(const std::string& stratum) {
  const auto near = [](std::vector<int> sizes) {
    return rc::gen::map(rc::gen::tuple(rc::gen::elementOf(std::move(sizes)), rc::gen::inRange(-1, 2)),
                        [](const std::tuple<int, int>& t) { return std::max(1, std::get<0>(t) + std::get<1>(t)); });
  };
  if (stratum == "long") return near({256, 384, 512, 768});
  if (stratum == "dimension") return near({1, 2, 8, 16, 24, 32, 48, 64, 96, 128, 192});
  return rc::gen::weightedOneOf<int>({{2, rc::gen::inRange(1, 6)}, {4, rc::gen::inRange(1, 40)}, {1, near({32, 64, 96, 128})}});
}

rc::Gen<int> variant_generator(int variant) {
  return rc::gen::shrink(rc::gen::just(variant), [](int value) { return rc::shrink::towards(value, 0); });
}

constexpr int variants = 120;  // a multiple of the number of kinds of every stratum

/// `occurrence` counts the recipes of the stratum: its kinds take turns, so that a short campaign meets them all.
rc::Gen<Recipe> recipe_generator(const Signature& signature, const std::string& stratum, std::uint64_t occurrence) {
  const bool merge = signature.input_with(Role::state_maximum) >= 0, attention = signature.axes == Axes::attention;
  return rc::gen::build<Recipe>(
      rc::gen::set(&Recipe::stratum, rc::gen::just(stratum)),
      rc::gen::set(&Recipe::rows, merge ? rc::gen::inRange(1, 65) : attention ? rc::gen::inRange(1, 20) : stratum == "long" ? rc::gen::inRange(1, 3) : rc::gen::inRange(1, 6)),
      rc::gen::set(&Recipe::classes, merge ? rc::gen::just(1) : attention ? keys_generator(stratum) : classes_generator(stratum)),
      rc::gen::set(&Recipe::position, rc::gen::inRange(0, 4)), rc::gen::set(&Recipe::gap, rc::gen::inRange(0, 65)),
      rc::gen::set(&Recipe::spread, rc::gen::inRange(0, 9)),
      rc::gen::set(&Recipe::offset, stratum == "shift" ? rc::gen::inRange(1, 61) : rc::gen::just(0)),
      rc::gen::set(&Recipe::closeness, rc::gen::inRange(0, 31)), rc::gen::set(&Recipe::variant, variant_generator(static_cast<int>(occurrence % variants))),
      rc::gen::set(&Recipe::upstream, rc::gen::inRange(0, 6)),
      rc::gen::set(&Recipe::layout, stratum == "layout" ? rc::gen::inRange(0, 6) : rc::gen::just(0)),
      rc::gen::set(&Recipe::attributes, rc::gen::inRange(0, 84)), rc::gen::set(&Recipe::options, rc::gen::inRange(0, 64)),
      rc::gen::set(&Recipe::seed, rc::gen::map(rc::gen::inRange<std::uint32_t>(0, 0xffffffffu), [](std::uint32_t s) { return s; })));
}

rc::Shrinkable<Recipe> origin(const Signature& signature, std::uint64_t seed, std::uint64_t index) {
  const std::vector<std::string> strata = strata_of(signature);
  rc::Random random(rc::Random::Key{seed, index, 0x73756d7a65726f, strata.size()});
  // Full size: ranges keep their whole width.
  return recipe_generator(signature, strata[index % strata.size()], index / strata.size())(random, 100);
}

}  // namespace

Recipe generate_recipe(const Signature& signature, std::uint64_t seed, std::uint64_t index) {
  return origin(signature, seed, index).value();
}

Recipe shrink_recipe(const Signature& signature, std::uint64_t seed, std::uint64_t index,
                     const std::function<bool(const Recipe&)>& fails, int budget) {
  rc::Shrinkable<Recipe> current = origin(signature, seed, index);
  for (bool smaller = true; smaller && budget > 0;) {
    smaller = false;
    auto candidates = current.shrinks();
    while (budget > 0) {
      const auto candidate = candidates.next();
      if (!candidate) break;
      --budget;
      if (!fails(candidate->value())) continue;
      current = *candidate;
      smaller = true;
      break;
    }
  }
  return current.value();
}

}  // namespace sumzero
