// Every entry of a case, entered into a profile. For charts: errors are taken from the filter's midpoints.
#pragma once

#include <vector>

#include "oracle/judge.hpp"
#include "oracle/profile.hpp"

namespace sumzero {

/// Adds the outputs of one call that the judge has judged already.
void survey(const Judge& judge, const Case& input, const std::vector<Tensor>& outputs, Profile& profile);

}  // namespace sumzero
