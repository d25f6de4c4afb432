// JSON as the project reads and writes it: strict parsing, errors that name file and position, numbers kept exactly.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace sumzero {

/// Parses one JSON text. Throws InvalidInput that names `source` and line and column for malformed or truncated text,
/// and the path of the field for a key that occurs twice or for nesting deeper than 64 levels.
nlohmann::json parse_json(std::string_view text, const std::string& source);

/// A value inside a parsed text, and where it stands. Every accessor throws InvalidInput naming source, path, rule and way out.
/// The parsed text must outlive it.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string source) : JsonValue(value, std::move(source), "") {}

  const nlohmann::json& raw() const { return *value_; }
  const std::string& source() const { return source_; }

  std::string text() const;
  std::int64_t integer(std::int64_t minimum = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t maximum = std::numeric_limits<std::int64_t>::max()) const;
  std::uint64_t count() const;
  bool flag() const;  ///< true or false
  /// A JSON number, or a string: a decimal or hexadecimal float, "inf", "-inf" or "nan".
  double number() const;
  std::optional<double> number_or_null() const;
  std::vector<JsonValue> items() const;                           ///< elements of an array
  std::vector<std::pair<std::string, JsonValue>> fields() const;  ///< members of an object

  JsonValue at(std::string_view key) const;                       ///< member that must be there
  std::optional<JsonValue> find(std::string_view key) const;
  JsonValue at(std::string_view first, std::string_view second) const { return at(first).at(second); }
  /// Fails when the object has a member that is not listed: a misspelt field is never dropped in silence.
  void only(std::initializer_list<std::string_view> known) const;
  /// Fails unless the object's `schema` is this one.
  void require_schema(std::string_view schema) const;

  [[noreturn]] void fail(const std::string& rule) const;

 private:
  JsonValue(const nlohmann::json& value, std::string source, std::string path)
      : value_(&value), source_(std::move(source)), path_(std::move(path)) {}
  void require(bool holds, const char* kind) const;

  const nlohmann::json* value_;
  std::string source_, path_;
};

/// The value as a hexadecimal float that reads back exactly ("0x1.8p+3"); "nan", "inf" and "-inf" for the rest.
/// Independent of the locale; NaN payloads and signs are not kept.
std::string hex_text(double value);
/// Shortest decimal that reads back exactly, or "nan", "inf", "-inf".
std::string decimal_text(double value);
/// `decimal_text` when that has at most 9 characters, else `hex_text`.
std::string exact_text(double value);
/// Reads what the two functions above write, and any other decimal or hexadecimal float; nothing else.
std::optional<double> number_from_text(std::string_view text);

/// A finite value as a JSON number, the rest as "inf", "-inf" or "nan": JSON has no such numbers.
nlohmann::json number_json(double value);

/// The text with bytes that are not UTF-8 replaced: JSON, XML and Markdown cannot carry them.
std::string valid_utf8(std::string_view text);

/// Indented text in the order of the object, arrays of scalars filled into lines, a newline at the end.
std::string pretty(const nlohmann::json& value);
std::string pretty(const nlohmann::ordered_json& value);

/// The bytes in the standard base-64 alphabet, with padding; and back, strictly.
std::string base64(const std::byte* bytes, std::size_t count);
std::optional<std::vector<std::byte>> bytes_from_base64(std::string_view text);

}  // namespace sumzero
