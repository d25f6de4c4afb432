// What a foreign kernel promises, as JSON: the answer of a worker, or the file of `--contract`.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "oracle/json.hpp"
#include "reference/operator.hpp"

namespace sumzero {

/// The contract of a kernel about which nothing is known but the arithmetic of its accumulator: elementary functions within
/// 2 u relative (1 ulp), any order of summation.
Contract default_contract(Format storage);

/// `unknown`, with the fields of `Contract` that the object names; `summation` is a kind, or an object with kind, width and
/// flush_every. The bound's kind is `declared`. Throws InvalidInput.
Contract contract_from(const JsonValue& value, Contract unknown);

/// The file of `--contract`: contract_from with the fields of the file over `unknown`. A file may name the operator, kernel and dtype
/// that it was written for; another operator or dtype than these throws InvalidInput. The kernel's name only informs.
Contract read_contract(const std::filesystem::path& path, std::string_view op, Format storage, Contract unknown);

/// The kernel with the promises of a contract file in place of its own; what the file leaves out stays as it was. The kernel
/// must outlive it. Throws InvalidInput.
std::unique_ptr<Kernel> with_contract(const Kernel& kernel, Format storage, const std::filesystem::path& path);

/// What contract_from reads back.
nlohmann::ordered_json contract_json(const Contract& contract);

}  // namespace sumzero
