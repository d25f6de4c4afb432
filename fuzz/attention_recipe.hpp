// Recipes of attention: strata and layouts of four dimensions.
#pragma once

#include "fuzz/recipe.hpp"

namespace sumzero {

std::vector<std::string> attention_strata();
Case expand_attention(const Recipe& recipe, const Signature& signature, Format storage);
std::vector<std::string> attention_classes();
std::vector<std::string> attention_classes_of(const Recipe& recipe, const Signature& signature, const Case& input);

}  // namespace sumzero
