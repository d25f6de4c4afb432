// What a foreign kernel promises, as JSON: the answer of a worker, or the file of `--contract`.
#pragma once

#include "oracle/json.hpp"
#include "reference/operator.hpp"

namespace sumzero {

/// The contract of a kernel about which nothing is known but the arithmetic of its accumulator: elementary functions within
/// 2 u relative (1 ulp), any order of summation.
Contract default_contract(Format storage);

/// `unknown`, with the fields of `Contract` that the object names; `summation` is a kind, or an object with kind, width and
/// flush_every. The bound's kind is `declared`. Throws InvalidInput.
Contract contract_from(const JsonValue& value, Contract unknown);

}  // namespace sumzero
