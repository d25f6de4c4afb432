// A case: one concrete input of one operator, complete and serialisable. The primary witness of every finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/format.hpp"

namespace sumzero {

/// A request that breaks a rule of the operator or of a file format. The message names the input, the rule
/// and the way out; the command line prints it and exits with code 2.
struct InvalidInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A dense or strided array. Strides and offset count elements of `format`, as in DLPack; a stride of 0
/// broadcasts. `bytes` is the whole storage, including any gaps between elements.
struct Tensor {
  Format format = Format::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::int64_t offset = 0;
  std::vector<std::byte> bytes;

  /// A contiguous (row-major) tensor of zeros.
  static Tensor contiguous(Format format, std::vector<std::int64_t> shape);

  std::int64_t elements() const;  ///< product of the shape; 1 for a scalar
  bool is_contiguous() const;
  /// Position in elements, from the start of the storage, of logical element `index` (row-major order).
  std::int64_t position(std::int64_t index) const;
  double get(std::int64_t index) const { return load_element(bytes.data() + position(index) * width(), format); }
  void set(std::int64_t index, double value) { store_element(bytes.data() + position(index) * width(), format, value); }
  std::int64_t width() const { return static_cast<std::int64_t>(traits(format).bytes); }
  /// The same logical contents without gaps.
  Tensor packed() const;
  bool operator==(const Tensor&) const = default;
};

/// One input of one operator. `inputs` maps names of the operator's signature to tensors; an absent optional
/// input has no entry. Attribute values are numbers; choices are stored as their index in the signature.
struct Case {
  std::string op;                            ///< operator name, for example "log_softmax"
  Format storage = Format::f32;              ///< storage format of the operator's main tensors
  std::vector<std::int64_t> extents;         ///< sizes of the signature's axes, for row operators {rows, classes}
  std::map<std::string, double> attributes;  ///< only values that differ from the default need an entry
  std::map<std::string, Tensor> inputs;
  bool operator==(const Case&) const = default;
};

/// Multiplies two extents; throws InvalidInput when the product leaves the range of a flat index.
std::int64_t checked_product(std::int64_t a, std::int64_t b, const std::string& what);

}  // namespace sumzero
