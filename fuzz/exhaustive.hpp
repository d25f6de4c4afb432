// Every row of a few logits that a format can hold, in chunks that are one case each.
#pragma once

#include <cstdint>

#include "reference/operator.hpp"

namespace sumzero {

/// All bit patterns of `length` entries of the logits, and of the teacher's where there is one: NaN and infinities
/// included. Everything else is fixed: label 0, upstream 1 (at entry 0, where it has a row's length), no optional input, no
/// reduction, other attributes at their defaults.
class Exhaustive {
 public:
  static constexpr int most_bits = 32;  ///< of a row: 2^32 rows take minutes to hours

  /// Length that is taken unless one is given: the longest with all rows within reach.
  static std::int64_t default_length(const Signature& signature, Format format);

  /// Throws InvalidInput where the operator has inputs that are not logits, or a row more than `most_bits` bits.
  Exhaustive(const Signature& signature, Format format, std::int64_t length);

  std::uint64_t chunks() const { return chunks_; }
  std::uint64_t rows() const { return chunks_ * rows_per_chunk_; }
  std::int64_t length() const { return template_.extents[axis::classes]; }
  /// Rows number index * rows() / chunks() and on. The entries of a row are the digits of its number, the first entry of the
  /// logits the highest.
  Case chunk(std::uint64_t index) const;
  /// One of its rows as a case of its own.
  Case row(std::uint64_t chunk, std::int64_t row) const;

 private:
  Case rows_from(std::uint64_t first, std::uint64_t count) const;

  const Signature& signature_;
  Case template_;  ///< a chunk without its logits
  std::vector<std::string> enumerated_;
  std::uint64_t chunks_ = 1, rows_per_chunk_ = 1;
};

}  // namespace sumzero
