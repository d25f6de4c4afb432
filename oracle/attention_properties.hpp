// Exact properties of attention kernels.
#pragma once

#include <memory>

#include "oracle/properties.hpp"

namespace sumzero {

/// Keys that a query does not see, by mask, bias, causal order or window, change nothing that belongs to the query, bit for
/// bit; and they receive no gradient from it.
std::unique_ptr<Property> hidden_keys_property();

}  // namespace sumzero
