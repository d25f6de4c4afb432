// A recipe: a small description of a case that expands deterministically. Campaigns generate and shrink recipes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/operator.hpp"

namespace sumzero {

/// Every field is a small integer so that it shrinks towards the plainest case; `expand` gives it its meaning.
struct Recipe {
  std::string stratum;
  int rows = 1;       ///< attention: queries
  int classes = 1;    ///< attention: keys
  int position = 0;   ///< place of the row maximum: 0 first, 1 middle, 2 last, 3 random
  int gap = 0;        ///< lead of the maximum in 1/16 steps of the stratum's range
  int spread = 0;     ///< size of the ordinary entries
  int offset = 0;     ///< common offset, exponent of two; 0: none
  int closeness = 0;  ///< student = teacher + 2^-closeness noise; attention: choice of head sizes
  int variant = 0;    ///< stratum-specific choice
  int upstream = 0;   ///< 0 ones, 1 random, 2 one-hot, 3 mixed magnitudes, 4 constant, 5 one zero row
  int layout = 0;     ///< 0 contiguous, 1 padded rows, 2 transposed, 3 offset, 4 broadcast rows, 5 reversed classes
  int attributes = 0; ///< index into the combinations of attribute values worth trying
  int options = 0;    ///< bits: which optional inputs are present, label placement
  std::uint32_t seed = 0;
  bool operator==(const Recipe&) const = default;
};

/// The strata that concern an operator, derived from the roles of its inputs.
std::vector<std::string> strata_of(const Signature& signature);

/// Expands a recipe to a valid case of the operator.
Case expand(const Recipe& recipe, const Signature& signature, Format storage);

/// Coverage classes that a case belongs to: its stratum and structural coordinates.
std::vector<std::string> classes_of(const Recipe& recipe, const Signature& signature, const Case& input);
/// Classes that a campaign on this operator must reach to be conclusive.
std::vector<std::string> required_classes(const Signature& signature);

}  // namespace sumzero
