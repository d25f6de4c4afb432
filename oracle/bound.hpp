// Bounds as data: expression trees in JSON over named quantities, evaluated rounded up by this one interpreter.
//
// A file oracle/bounds/<operator>.json holds for every output the theorem's name, its kind and the tree. Leaves are
// numbers and names; inner nodes are arrays ["op", ...]:
//   ["+", a, b, ...]  ["*", a, b, ...]  ["/", a, b]  ["max", a, ...]  ["min", a, ...]  ["log", a]
//   ["sum", a]       sum over the row
//   ["rel", K]        (1+u)^K - 1 in the accumulator's u, as expm1(K u)
//   ["rel", K, v]     the same with another unit roundoff
//   ["height", m]     height of the contract's summation tree over m terms, m the same for all entries
// All values are non-negative. "let": [[name, tree], ...] names sub-expressions. Names:
//   contract  u, eta (smallest subnormal of the accumulator, the smallest normal under flush-to-zero), u_out, eta_out, c_e,
//             c_l, c_x, shift (1, or 0 with a compensated shift), reciprocal (0 or 1), h (height of the summation tree over
//             n-1 terms), h_n (over n terms), n, tile (keys per tile, 2^62 where all are met at once), pivoted and unpivoted
//             (0 or 1)
//   operator  the signature's scalars and arrays, and `exact` = |exact value| of the entry
// The bound is absolute, per entry, for the value in the accumulator; the store to a narrower format is added by the
// oracle. A "divisor" must be a lower bound; only constants and n are used as such.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/operator.hpp"

namespace sumzero {

struct EmbeddedBound {
  std::string name, text;
};
/// The bound files, compiled in.
const std::vector<EmbeddedBound>& embedded_bounds();

/// Bound of one output of one operator, for one contract and format.
class Bound {
 public:
  Bound();
  Bound(Bound&&) noexcept;
  Bound& operator=(Bound&&) noexcept;
  ~Bound();

  std::string theorem, kind, file;
  bool has_sum_bound() const;    ///< is there a sharper bound for the sum of a row?
  bool has_sum_entries() const;  ///< are entries judged less strictly than their sum?

  /// What storing a number adds to its bound: bound * of_bound + min(|exact|, largest) * of_exact + constant.
  struct Store {
    double of_bound = 1, of_exact = 0, constant = 0, largest = std::numeric_limits<double>::infinity();
  };

  /// Rows of n entries, one behind the other: their quantities, and what the bound is of.
  struct Rows {
    std::size_t n;
    const std::vector<double>& scalars;               ///< in signature order, each for all rows
    const std::vector<std::vector<double>>& arrays;   ///< in signature order; those that the bound names have an entry per entry
    const std::vector<double>& exact;                 ///< |exact| rounded up: of every entry, or one per row
    std::size_t count = 1;                            ///< rows; several only of outputs with n entries or one per row
  };
  /// Writes the bound of every stored entry.
  void evaluate(const Rows& rows, const Store& store, std::vector<double>& result) const;
  /// The same for the entries as terms of their sum: "sum_entries" of the file, for outputs whose sum is an exact property
  /// that a kernel's contract does not soften.
  void evaluate_sum_entries(const Rows& rows, const Store& store, std::vector<double>& result) const;
  /// Bound of |sum of the row|; `exact` holds the sum of |exact| of every row, rounded up.
  void evaluate_sums(const Rows& rows, std::vector<double>& result) const;
  /// The same of one row.
  double sum_bound(std::size_t n, const std::vector<double>& scalars, double total) const;

 private:
  friend Bound find_bound(const Signature&, int, const Contract&, Format);
  struct Program;
  std::unique_ptr<Program> program_;
};

/// The bound of output `output` under a contract. Throws std::logic_error when no file has one.
Bound find_bound(const Signature& signature, int output, const Contract& contract, Format storage);

}  // namespace sumzero
