// Texts for people: one case explained, two kernels compared.
#pragma once

#include <string>

#include "fuzz/examine.hpp"

namespace sumzero {

/// Inputs, exact and computed value of every entry (the worst 16 of long rows), errors and bounds, and a reading of
/// where the digits went.
std::string explain(const Examiner& examiner, const Case& input);

/// Three-way comparison on the cases of a campaign: errors of both kernels against the exact value, and how often they
/// differ from each other. The kernels are of one operator.
std::string compare(const Kernel& first, const Kernel& second, Format format, std::uint64_t seed, std::uint64_t cases);

}  // namespace sumzero
