#include "oracle/json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "reference/case.hpp"

namespace sumzero {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int deepest_nesting = 64;
constexpr std::size_t line_width = 110;
constexpr std::string_view base64_alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Long names are cut in messages: a hostile file must not turn one sentence into a page.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string shown = valid_utf8(text.substr(0, longest));
  return "'" + shown + (text.size() > longest ? "...'" : "'");
}

const char* kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null: return "null";
    case json::value_t::object: return "an object";
    case json::value_t::array: return "an array";
    case json::value_t::string: return "a string";
    case json::value_t::boolean: return "a boolean";
    default: return "a number";
  }
}

/// Watches the parser for what it would accept in silence: keys that occur twice and bottomless nesting.
class Watch {
 public:
  explicit Watch(const std::string& source) : source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= deepest_nesting)
        throw InvalidInput(source_ + ": nested deeper than " + std::to_string(deepest_nesting) +
                           " levels; no file of this kind needs that");
      if (event == json::parse_event_t::object_start) objects_.emplace_back();
    } else if (event == json::parse_event_t::key) {
      objects_.back().latest = value.get<std::string>();
      if (!objects_.back().keys.insert(objects_.back().latest).second)
        throw InvalidInput(source_ + ", field " + path() + ": the key occurs twice in one object; keep one of them");
    } else if (event == json::parse_event_t::object_end) {
      objects_.pop_back();
    }
    return true;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string latest;
  };
  std::string path() const {
    std::string path;
    for (const Object& object : objects_) path += (path.empty() ? "" : ".") + object.latest;
    return in_quotes(path);
  }

  const std::string& source_;
  std::vector<Object> objects_;
};

std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte > 0 ? std::min(byte - 1, text.size()) : 0);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const std::size_t last = before.rfind('\n');
  const std::size_t column = last == std::string_view::npos ? before.size() : before.size() - last - 1;
  return "line " + std::to_string(lines + 1) + ", column " + std::to_string(column + 1);
}

template <class Json>
std::string scalar_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class Json>
void print(const Json& value, std::size_t indent, std::string& out) {
  const std::string inner(indent + 2, ' '), outer(indent, ' ');
  if (value.is_object() && !value.empty()) {
    out += "{\n";
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!first) out += ",\n";
      first = false;
      out += inner + scalar_text(Json(key)) + ": ";
      print(member, indent + 2, out);
    }
    out += "\n" + outer + "}";
    return;
  }
  if (!value.is_array() || value.empty()) {
    out += scalar_text(value);
    return;
  }
  const bool flat = std::none_of(value.begin(), value.end(), [](const Json& item) { return item.is_structured(); });
  if (!flat) {
    out += "[\n";
    for (std::size_t i = 0; i < value.size(); ++i) {
      out += (i ? ",\n" : "") + inner;
      print(value[i], indent + 2, out);
    }
    out += "\n" + outer + "]";
    return;
  }
  std::string line = "[";
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::string item = scalar_text(value[i]) + (i + 1 < value.size() ? "," : "]");
    if (line.size() > inner.size() && line.size() + item.size() + 1 > line_width) {
      out += line + "\n";
      line = inner + item;
    } else {
      line += (i ? " " : "") + item;
    }
  }
  out += line;
}

template <class Json>
std::string pretty_text(const Json& value) {
  std::string out;
  print(value, 0, out);
  return out + "\n";
}

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  try {
    return json::parse(text.begin(), text.end(), Watch(source));
  } catch (const json::parse_error& error) {
    const bool ends = error.byte > text.size();
    throw InvalidInput(source + ": is not valid JSON at " + line_and_column(text, error.byte) +
                       (ends ? " (the text ends too early)" : "") + "; restore the file or write it again");
  } catch (const json::exception& error) {
    // Only numbers beyond the range of a double arrive here.
    throw InvalidInput(source + ": has a number that no double can hold; write it as a string or correct it");
  }
}

void JsonValue::fail(const std::string& rule) const {
  throw InvalidInput(source_ + (path_.empty() ? "" : ", field " + path_) + ": " + rule);
}

void JsonValue::require(bool holds, const char* kind) const {
  if (!holds) fail("is " + std::string(kind_of(*value_)) + " where " + kind + " is needed; correct the field");
}

std::string JsonValue::text() const {
  require(value_->is_string(), "a string");
  return value_->get<std::string>();
}

std::int64_t JsonValue::integer(std::int64_t minimum, std::int64_t maximum) const {
  require(value_->is_number(), "a whole number");
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value_->is_number_integer() || too_large)
    fail(scalar_text(*value_) + " is not a whole number that fits 64 bits; write it without point and exponent");
  const std::int64_t number = value_->get<std::int64_t>();
  if (number < minimum || number > maximum)
    fail(std::to_string(number) + " is outside " + std::to_string(minimum) + ".." + std::to_string(maximum) +
         "; correct it");
  return number;
}

bool JsonValue::flag() const {
  require(raw().is_boolean(), "true or false");
  return raw().get<bool>();
}

std::uint64_t JsonValue::count() const {
  require(value_->is_number(), "a count");
  if (!value_->is_number_unsigned()) fail(scalar_text(*value_) + " is not a count; write a whole number from 0 on");
  return value_->get<std::uint64_t>();
}

double JsonValue::number() const {
  require(value_->is_number() || value_->is_string(), "a number");
  if (value_->is_number()) return value_->get<double>();
  const std::optional<double> number = number_from_text(value_->get_ref<const std::string&>());
  if (!number)
    fail(in_quotes(value_->get_ref<const std::string&>()) +
         " is not a number; write a decimal, a hexadecimal float such as 0x1.8p+3, inf, -inf or nan");
  return *number;
}

std::optional<double> JsonValue::number_or_null() const {
  if (value_->is_null()) return std::nullopt;
  return number();
}

std::vector<JsonValue> JsonValue::items() const {
  require(value_->is_array(), "an array");
  std::vector<JsonValue> result;
  result.reserve(value_->size());
  for (const json& item : *value_)
    result.push_back(JsonValue(item, source_, path_ + "[" + std::to_string(result.size()) + "]"));
  return result;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::fields() const {
  require(value_->is_object(), "an object");
  std::vector<std::pair<std::string, JsonValue>> result;
  for (const auto& [key, member] : value_->items()) result.emplace_back(key, at(key));
  return result;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  require(value_->is_object(), "an object");
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) return std::nullopt;
  std::string shown = in_quotes(key);
  shown = shown.substr(1, shown.size() - 2);
  return JsonValue(*found, source_, path_.empty() ? shown : path_ + "." + shown);
}

JsonValue JsonValue::at(std::string_view key) const {
  if (std::optional<JsonValue> found = find(key)) return *found;
  fail("the field " + in_quotes(key) + " is missing; add it");
}

void JsonValue::only(std::initializer_list<std::string_view> known) const {
  require(value_->is_object(), "an object");
  for (const auto& [key, member] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known) names += (names.empty() ? "" : ", ") + std::string(name);
    fail("unknown field " + in_quotes(key) + "; known: " + names);
  }
}

void JsonValue::require_schema(std::string_view schema) const {
  require(value_->is_object(), "an object");
  const std::string found = at("schema").text();
  if (found != schema)
    fail("schema " + in_quotes(found) + " is not " + std::string(schema) +
         "; write the file again with this version of sumzero");
}

std::string hex_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), std::fabs(value), std::chars_format::hex);
  return (std::signbit(value) ? "-0x" : "0x") + std::string(digits.data(), end.ptr);
}

std::string decimal_text(double value) {
  if (!std::isfinite(value)) return hex_text(value);
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return std::string(digits.data(), end.ptr);
}

std::string exact_text(double value) {
  const std::string decimal = decimal_text(value);
  return decimal.size() <= 9 ? decimal : hex_text(value);
}

std::optional<double> number_from_text(std::string_view text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  double value = std::numeric_limits<double>::infinity();
  if (text != "inf") {
    const bool hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    if (hexadecimal) text.remove_prefix(2);
    // from_chars also takes words and a second sign.
    const bool starts = !text.empty() && (text[0] == '.' || std::isdigit(static_cast<unsigned char>(text[0])) ||
                                          (hexadecimal && std::isxdigit(static_cast<unsigned char>(text[0]))));
    if (!starts) return std::nullopt;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value,
                                      hexadecimal ? std::chars_format::hex : std::chars_format::general);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  }
  return negative ? -value : value;
}

json number_json(double value) { return std::isfinite(value) ? json(value) : json(hex_text(value)); }

std::string valid_utf8(std::string_view text) {
  return json::parse(scalar_text(json(std::string(text)))).get<std::string>();
}

std::string pretty(const json& value) { return pretty_text(value); }
std::string pretty(const ordered_json& value) { return pretty_text(value); }

std::string base64(const std::byte* bytes, std::size_t count) {
  std::string text;
  text.reserve((count + 2) / 3 * 4);
  for (std::size_t i = 0; i < count; i += 3) {
    const std::size_t have = std::min<std::size_t>(3, count - i);
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) group = group << 8 | (k < have ? std::to_integer<std::uint32_t>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) text += k <= have ? base64_alphabet[group >> (18 - 6 * k) & 63u] : '=';
  }
  return text;
}

std::optional<std::vector<std::byte>> bytes_from_base64(std::string_view text) {
  static const std::array<std::int8_t, 256> value_of = [] {
    std::array<std::int8_t, 256> table;
    table.fill(-1);
    for (std::size_t i = 0; i < base64_alphabet.size(); ++i)
      table[static_cast<unsigned char>(base64_alphabet[i])] = static_cast<std::int8_t>(i);
    return table;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t i = 0; i < text.size(); i += 4) {
    const std::size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      const int digit = k < digits ? value_of[static_cast<unsigned char>(text[i + k])] : 0;
      if (digit < 0) return std::nullopt;
      group = group << 6 | static_cast<std::uint32_t>(digit);
    }
    // Bits that belong to no byte must be zero, or two texts would mean the same bytes.
    if ((group & (digits == 2 ? 0xffffu : digits == 3 ? 0xffu : 0u)) != 0) return std::nullopt;
    for (std::size_t k = 0; k + 1 < digits; ++k) bytes.push_back(static_cast<std::byte>(group >> (16 - 8 * k) & 255u));
  }
  return bytes;
}

}  // namespace sumzero
