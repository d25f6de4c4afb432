// Makes a failing case small enough to type: fewer rows and classes, plain layout, simple numbers.
#pragma once

#include <functional>

#include "reference/operator.hpp"

namespace sumzero {

/// Smallest case found for which `fails` holds, starting from `input`, for which it must hold. Tests at most `budget`
/// candidates; every candidate is valid for the signature.
Case minimise(const Signature& signature, Case input, const std::function<bool(const Case&)>& fails, int budget);

}  // namespace sumzero
