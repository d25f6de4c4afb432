// A witness: one case as text that people can read, type and mail, and that reads back bit for bit.
//
//   {
//     "schema": "sumzero-case/1",
//     "operator": "cross_entropy", "storage": "f32", "extents": [1, 2],
//     "attributes": {"reduction": "mean"},
//     "inputs": {
//       "label": {"format": "index", "shape": [1], "strides": [1], "offset": 0, "elements": 1, "data": [0]},
//       "x": {"format": "f32", "shape": [1, 2], "strides": [2, 1], "offset": 0, "elements": 2, "data": ["0x1.1p+4", "0x0p+0"]}
//     }
//   }
//
// `data` lists the whole storage, gaps included; above `readable_elements` entries its bytes (little endian) stand in
// `base64` instead. Choices are written by name. A person may leave out attributes at their default, `strides` and `offset`
// of a contiguous tensor and `elements`, and may write numbers in decimal as long as the format holds them exactly.
// NaNs in `data` become quiet NaNs; `base64` keeps their bits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "oracle/json.hpp"
#include "reference/operator.hpp"

namespace sumzero {

constexpr std::string_view witness_schema = "sumzero-case/1";
/// Largest storage, in elements, that is written as a list of numbers.
constexpr std::size_t readable_elements = 4096;
/// Extents whose product exceeds this must be backed by as many stored elements: a short text with broadcast strides must
/// not make its reader allocate or loop without end.
constexpr std::int64_t largest_broadcast_case = std::int64_t{1} << 26;

/// The witness as a JSON object; storages of more than `readable` elements in base64. Throws InvalidInput when the operator is
/// not registered or a storage is no whole number of elements.
nlohmann::ordered_json to_json(const Case& input, std::size_t readable = readable_elements);
/// The case of such an object, validated against its operator's signature. Throws InvalidInput that names file and field.
Case case_from_json(const JsonValue& value);

/// An attribute as kernels outside this process get it: the name of a choice, or a number.
nlohmann::json choice_or_number(const AttributeSpec& spec, double value);

/// Canonical text: equal cases give equal texts, NaNs apart.
std::string witness_text(const Case& input);
/// `source` names the text in messages.
Case parse_witness(std::string_view text, const std::string& source);

/// 32 hexadecimal digits, FNV-1a of 128 bits: a name for contents, no protection against an adversary.
std::string content_hash(std::string_view text);

/// 128-bit FNV-1a of the canonical text (Fowler, Noll, Vo, Eastlake, RFC 9923), as 32 hexadecimal digits.
std::string content_address(const Case& input);

/// Writes `<content address>.json` into the folder, atomically, and returns the address; an existing file with the same
/// contents is left alone. Throws InvalidInput for a case that could not be read back, or a folder that cannot be written.
std::string write_witness(const std::filesystem::path& folder, const Case& input);
Case read_witness(const std::filesystem::path& path);

}  // namespace sumzero
