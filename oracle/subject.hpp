// Results that were computed elsewhere, judged here: the library side of EXPECT_WITHIN_BOUND.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oracle/verdict.hpp"
#include "reference/operator.hpp"

namespace sumzero {

/// Inputs and outputs of one call of an operator, collected by name from the caller's memory (contiguous, row-major).
///
///   Subject subject("softmax", Format::f32, rows, classes);
///   subject.input("x", x).output("p", p);
/// Names, shapes and attributes are those of `sumzero list`. Elements: float and double for f32 and f64, the bit patterns
/// as std::uint16_t for bf16 and f16 and as std::uint8_t for e4m3 and e5m2, std::int64_t for labels, std::uint8_t for masks and
/// flags. Throws InvalidInput for unknown names and wrong sizes.
class Subject {
 public:
  Subject(std::string op, Format storage, std::int64_t rows, std::int64_t classes) : Subject(std::move(op), storage, {rows, classes}) {}
  /// Attention: extents {batch, heads, kv_heads, queries, keys, head_size, value_size}.
  Subject(std::string op, Format storage, std::vector<std::int64_t> extents);

  Subject& input(const std::string& name, std::span<const float> values) { return add_input(name, Format::f32, std::as_bytes(values)); }
  Subject& input(const std::string& name, std::span<const double> values) { return add_input(name, Format::f64, std::as_bytes(values)); }
  Subject& input(const std::string& name, std::span<const std::uint16_t> bits) { return add_input(name, case_.storage, std::as_bytes(bits)); }
  Subject& input(const std::string& name, std::span<const std::int64_t> values) { return add_input(name, Format::index, std::as_bytes(values)); }
  Subject& input(const std::string& name, std::span<const std::uint8_t> bytes) { return add_input(name, byte_format(signature().inputs, name), std::as_bytes(bytes)); }

  Subject& output(const std::string& name, std::span<const float> values) { return add_output(name, Format::f32, std::as_bytes(values)); }
  Subject& output(const std::string& name, std::span<const double> values) { return add_output(name, Format::f64, std::as_bytes(values)); }
  Subject& output(const std::string& name, std::span<const std::uint16_t> bits) { return add_output(name, case_.storage, std::as_bytes(bits)); }
  Subject& output(const std::string& name, std::span<const std::uint8_t> bytes) { return add_output(name, byte_format(signature().outputs, name), std::as_bytes(bytes)); }

  /// A number, or the name of a choice. Set attributes before inputs whose shape depends on them (`reduction`).
  Subject& attribute(const std::string& name, double value);
  Subject& attribute(const std::string& name, const std::string& choice);

  /// What the kernel under test promises. Default: arithmetic in the accumulator that belongs to the storage format, exp and
  /// log within 1 ulp, unknown order of summation.
  Subject& contract(Contract contract);

  /// Violations of bound and exact properties, confirmed by the Enclosure; empty when all is well.
  std::vector<Violation> violations() const;

 private:
  Subject& add_input(const std::string& name, Format format, std::span<const std::byte> bytes);
  Subject& add_output(const std::string& name, Format format, std::span<const std::byte> bytes);
  Tensor tensor(const std::string& what, Format format, Shape shape, std::span<const std::byte> bytes) const;
  const Signature& signature() const;
  /// Bytes are flags unless the tensor holds numbers of the storage format.
  template <class Specs>
  Format byte_format(const Specs& specs, const std::string& name) const {
    for (const auto& spec : specs)
      if (spec.name == name && spec.element == Element::storage) return case_.storage;
    return Format::boolean;
  }

  Case case_;
  Contract contract_;
  std::vector<Tensor> outputs_;
};

}  // namespace sumzero
