#include "oracle/witness.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "oracle/file.hpp"
#include "reference/evaluate.hpp"
#include "reference/operator.hpp"

namespace sumzero {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "base64 storage is written in little-endian order");

constexpr std::size_t most_axes = 16;

ordered_json element_json(const std::byte* address, Format format) {
  if (format == Format::boolean) return std::to_integer<unsigned>(*address);
  if (format != Format::index) return hex_text(load_element(address, format));
  std::int64_t index;  // load_element would round beyond 2^53
  std::memcpy(&index, address, sizeof index);
  return index;
}

ordered_json tensor_json(const std::string& what, const Tensor& tensor, std::size_t readable) {
  const std::size_t width = traits(tensor.format).bytes, stored = tensor.bytes.size() / width;
  if (stored * width != tensor.bytes.size())
    throw InvalidInput(what + ": storage of " + std::to_string(tensor.bytes.size()) + " bytes is no whole number of " +
                       std::string(name(tensor.format)) + " elements; cut or extend it");
  ordered_json result;
  result["format"] = name(tensor.format);
  result["shape"] = tensor.shape;
  result["strides"] = tensor.strides;
  result["offset"] = tensor.offset;
  result["elements"] = stored;
  if (stored > readable) {
    result["base64"] = base64(tensor.bytes.data(), tensor.bytes.size());
    return result;
  }
  ordered_json& data = result["data"] = ordered_json::array();
  for (std::size_t i = 0; i < stored; ++i) data.push_back(element_json(tensor.bytes.data() + i * width, tensor.format));
  return result;
}

ordered_json attribute_json(const Signature& signature, const std::string& attribute, double value) {
  const int index = signature.attribute(attribute);
  if (index >= 0) {
    const std::vector<std::string>& choices = signature.attributes[static_cast<std::size_t>(index)].choices;
    if (value >= 0 && value < static_cast<double>(choices.size()) && value == std::floor(value))
      return choices[static_cast<std::size_t>(value)];
  }
  const bool whole = value == std::floor(value) && std::fabs(value) <= 0x1p53 && !(value == 0 && std::signbit(value));
  if (whole) return static_cast<std::int64_t>(value);
  const std::string text = exact_text(value);
  const bool decimal = std::isfinite(value) && text.find('x') == std::string::npos;
  return decimal ? ordered_json(value) : ordered_json(text);
}

double attribute_value(const Signature& signature, const std::string& attribute, const JsonValue& value) {
  const int index = signature.attribute(attribute);
  if (index < 0) value.fail("operator " + signature.name + " has no such attribute; remove it");
  const std::vector<std::string>& choices = signature.attributes[static_cast<std::size_t>(index)].choices;
  if (choices.empty()) return value.number();
  const std::string choice = value.text();
  std::string known;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == choice) return static_cast<double>(i);
    known += (i ? ", " : "") + choices[i];
  }
  value.fail("unknown choice; known: " + known);
}

Format format_from(const JsonValue& value) {
  if (const std::optional<Format> format = format_named(value.text())) return *format;
  value.fail("unknown format; known: " + std::string(floating_format_names) + ", bool, index");
}

std::vector<std::int64_t> integers(const JsonValue& value, std::int64_t minimum) {
  if (value.raw().is_array() && value.raw().size() > most_axes)
    value.fail("has " + std::to_string(value.raw().size()) + " axes; at most " + std::to_string(most_axes) + " are read");
  std::vector<std::int64_t> result;
  for (const JsonValue& item : value.items()) result.push_back(item.integer(minimum));
  return result;
}

void store(const JsonValue& value, std::byte* address, Format format) {
  if (format == Format::boolean) {
    *address = static_cast<std::byte>(value.integer(0, 255));
  } else if (format == Format::index) {
    const std::int64_t index = value.integer();
    std::memcpy(address, &index, sizeof index);
  } else {
    const double number = value.number();
    store_element(address, format, number);
    if (std::isnan(number) || load_element(address, format) == number) return;
    value.fail(exact_text(number) + " is not a number of format " + std::string(name(format)) + "; its neighbour is " +
               hex_text(load_element(address, format)));
  }
}

std::vector<std::byte> storage_from(const JsonValue& tensor, Format format) {
  const std::size_t width = traits(format).bytes;
  const std::optional<JsonValue> list = tensor.find("data"), packed = tensor.find("base64");
  if (list.has_value() == packed.has_value())
    tensor.fail("needs its numbers in either data or base64; give exactly one of them");
  std::vector<std::byte> bytes;
  if (list) {
    const std::vector<JsonValue> items = list->items();
    bytes.resize(items.size() * width);
    for (std::size_t i = 0; i < items.size(); ++i) store(items[i], bytes.data() + i * width, format);
  } else {
    std::optional<std::vector<std::byte>> decoded = bytes_from_base64(packed->text());
    if (!decoded) packed->fail("is not base64 text; write the witness again");
    bytes = std::move(*decoded);
    if (bytes.size() % width != 0)
      packed->fail("holds " + std::to_string(bytes.size()) + " bytes, no whole number of " + std::string(name(format)) +
                   " elements; write the witness again");
  }
  return bytes;
}

/// One past the last storage element that a validated layout reaches.
std::int64_t reach(const Tensor& tensor) {
  std::int64_t last = tensor.offset;
  for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis)
    last += std::max<std::int64_t>(0, (tensor.shape[axis] - 1) * tensor.strides[axis]);
  return last + 1;
}

Tensor tensor_from(const JsonValue& value) {
  value.only({"format", "shape", "strides", "offset", "elements", "data", "base64"});
  Tensor tensor;
  tensor.format = format_from(value.at("format"));
  tensor.shape = integers(value.at("shape"), 1);
  tensor.bytes = storage_from(value, tensor.format);
  const std::int64_t stored = static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width();
  const std::string data = std::to_string(stored) + " stored elements";
  if (const std::optional<JsonValue> elements = value.find("elements"))
    if (elements->count() != static_cast<std::uint64_t>(stored))
      elements->fail(std::to_string(elements->count()) + " announced, but there are " + data + "; correct one of them");

  if (const std::optional<JsonValue> strides = value.find("strides")) {
    tensor.strides = integers(*strides, std::numeric_limits<std::int64_t>::min());
    if (tensor.strides.size() != tensor.shape.size()) strides->fail("needs one stride for each axis of the shape; correct it");
    // Keeps every later product of an extent and a stride inside 64 bits.
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis)
      if (tensor.shape[axis] > 1 && (tensor.strides[axis] > stored || tensor.strides[axis] < -stored))
        strides->fail("a stride of " + std::to_string(tensor.strides[axis]) + " leaves the " + data + "; correct it");
  } else {
    tensor.strides.assign(tensor.shape.size(), 1);
    for (std::size_t axis = tensor.shape.size(); axis-- > 1;)
      tensor.strides[axis - 1] =
          checked_product(tensor.strides[axis], tensor.shape[axis], value.source() + ", shape of an input");
  }
  if (const std::optional<JsonValue> offset = value.find("offset")) tensor.offset = offset->integer(0);
  if (tensor.offset >= stored) value.fail("offset " + std::to_string(tensor.offset) + " leaves the " + data + "; correct it");
  return tensor;
}

void check_size(const JsonValue& value, const Case& input) {
  std::int64_t elements = 1, stored = 0;
  bool overflow = false;
  const Signature& signature = Registry::global().operator_named(input.op).signature();
  for (const OutputSpec& spec : signature.outputs) {
    std::int64_t count = 1;
    for (const std::size_t axis : axes_of(spec.shape))
      overflow |= axis < input.extents.size() && __builtin_mul_overflow(count, input.extents[axis], &count);
    elements = std::max(elements, count);
  }
  for (const auto& [key, tensor] : input.inputs) stored += static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width();
  if (overflow || elements > std::max(largest_broadcast_case, stored))
    value.at("extents").fail("announce " + (overflow ? "more elements than 64 bits count" : std::to_string(elements) + " elements") +
                             ", but " + std::to_string(stored) + " are stored; correct the extents or give all data");
}

// Broadcast tensors and slack at the end are layouts of their own, so a count that does not fit can be told from a
// wanted one only by `elements`; where it is left out, the data must end where the layout ends.
void check_counts(const JsonValue& inputs, const Case& input) {
  for (const auto& [key, tensor] : input.inputs) {
    const JsonValue value = inputs.at(key);
    const std::int64_t stored = static_cast<std::int64_t>(tensor.bytes.size()) / tensor.width();
    if (!value.find("elements") && reach(tensor) != stored)
      value.fail("has " + std::to_string(stored) + " stored elements where shape and strides need " +
                 std::to_string(reach(tensor)) + "; correct the data, or add elements if the rest is wanted");
  }
}

}  // namespace

std::string content_hash(std::string_view text) {
  // FNV-1a: offset basis and prime 2^88 + 2^8 + 0x3b of the 128-bit variant.
  using Wide = unsigned __int128;
  constexpr Wide prime = (Wide{1} << 88) | 0x13b;
  Wide hash = Wide{0x6c62272e07bb0142} << 64 | 0x62b821756295c58d;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * prime;
  std::string address;
  for (int shift = 124; shift >= 0; shift -= 4) address += "0123456789abcdef"[static_cast<unsigned>(hash >> shift) & 15u];
  return address;
}

namespace {

const Signature& signature_of(const std::string& op) { return Registry::global().operator_named(op).signature(); }

}  // namespace

ordered_json to_json(const Case& input, std::size_t readable) {
  const Signature& signature = signature_of(input.op);
  ordered_json result;
  result["schema"] = witness_schema;
  result["operator"] = input.op;
  result["storage"] = name(input.storage);
  result["extents"] = input.extents;
  result["attributes"] = ordered_json::object();
  for (const auto& [key, value] : input.attributes) result["attributes"][key] = attribute_json(signature, key, value);
  result["inputs"] = ordered_json::object();
  for (const auto& [key, tensor] : input.inputs)
    result["inputs"][key] = tensor_json(input.op + ": input '" + key + "'", tensor, readable);
  return result;
}

Case case_from_json(const JsonValue& value) {
  value.require_schema(witness_schema);
  value.only({"schema", "operator", "storage", "extents", "attributes", "inputs"});
  Case result;
  result.op = value.at("operator").text();
  try {
    signature_of(result.op);
  } catch (const InvalidInput& error) {
    value.at("operator").fail(error.what());
  }
  const Signature& signature = signature_of(result.op);
  result.storage = format_from(value.at("storage"));
  result.extents = integers(value.at("extents"), 1);
  if (const std::optional<JsonValue> attributes = value.find("attributes"))
    for (const auto& [key, attribute] : attributes->fields())
      result.attributes[key] = attribute_value(signature, key, attribute);
  const JsonValue inputs = value.at("inputs");
  for (const auto& [key, tensor] : inputs.fields()) result.inputs[key] = tensor_from(tensor);
  check_size(value, result);
  try {
    validate(signature, result);
  } catch (const InvalidInput& error) {
    value.fail(error.what());
  }
  check_counts(inputs, result);
  return result;
}

nlohmann::json choice_or_number(const AttributeSpec& spec, double value) {
  return spec.choices.empty() ? nlohmann::json(value) : nlohmann::json(spec.choices[static_cast<std::size_t>(value)]);
}

std::string witness_text(const Case& input) { return pretty(to_json(input)); }

Case parse_witness(std::string_view text, const std::string& source) {
  const json parsed = parse_json(text, source);
  return case_from_json(JsonValue(parsed, source));
}

std::string content_address(const Case& input) { return content_hash(witness_text(input)); }

std::string write_witness(const std::filesystem::path& folder, const Case& input) {
  const std::string text = witness_text(input), address = content_hash(text);
  // What cannot be read back is no witness.
  parse_witness(text, "witness " + address);
  write_file(folder / (address + ".json"), text);
  return address;
}

Case read_witness(const std::filesystem::path& path) { return parse_witness(read_file(path), path.string()); }

}  // namespace sumzero
