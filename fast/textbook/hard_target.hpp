// The dense target that a hard label, label smoothing and class weights amount to.
#pragma once

#include <cstddef>

#include "fast/textbook/torch_forms.hpp"
#include "reference/operator.hpp"

namespace sumzero::textbook {

/// Indices of cross_entropy's signature.
namespace cross_entropy {
constexpr std::size_t x = 0, weight = 2;    // inputs
constexpr std::size_t loss = 0, gx = 1;     // outputs
constexpr std::size_t label_smoothing = 0;  // attributes
}  // namespace cross_entropy

/// Target of one row: mass_j = (1-a) w_t [j = t] + (a/n) w_j, so that loss = sum_j mass_j (-logp_j).
template <class T>
class HardTarget {
 public:
  explicit HardTarget(const Row<T>& row)
      : weight_(row.in[cross_entropy::weight]),
        label_(static_cast<std::size_t>(row.label)),
        smoothing_(static_cast<T>(row.attribute[cross_entropy::label_smoothing])),
        uniform_(smoothing_ / static_cast<T>(row.n)) {}

  std::size_t label() const { return label_; }
  bool is_smooth() const { return smoothing_ != 0; }
  bool is_weighted() const { return weight_ != nullptr; }
  T smoothing() const { return smoothing_; }
  T weight(std::size_t j) const { return weight_ ? weight_[j] : T(1); }
  T mass(std::size_t j) const {
    const T uniform = is_smooth() ? uniform_ * weight(j) : T(0);
    return j == label_ ? (T(1) - smoothing_) * weight(j) + uniform : uniform;
  }
  /// Sum of the masses over n classes. Libraries without class weights take it to be 1 without adding up.
  T total(std::size_t n) const {
    if (!is_weighted()) return T(1);
    return is_smooth() ? sequential_sum<T>(n, [this](std::size_t j) { return mass(j); }) : weight(label_);
  }

 private:
  const T* weight_;
  std::size_t label_;
  T smoothing_, uniform_;
};

/// Writes gx = factor (prob total - mass), the difference formed first: for a plain hard label
/// factor w_t (prob - onehot). The probability and the target are rounded separately (defect H2).
template <class T>
void write_probability_minus_target(const Row<T>& row, const HardTarget<T>& target,
                                    const Values<T>& probability) {
  T* gx = row.out[cross_entropy::gx];
  if (!gx) return;
  const T factor = static_cast<T>(row.factor);
  if (target.is_smooth()) {
    const T total = target.total(row.n);
    for (std::size_t j = 0; j < row.n; ++j) gx[j] = (probability[j] * total - target.mass(j)) * factor;
    return;
  }
  const T scale = factor * target.weight(target.label());
  for (std::size_t j = 0; j < row.n; ++j) gx[j] = (probability[j] - T(j == target.label())) * scale;
}

/// sum_j mass_j negative_log(j), from left to right; entries without mass do not enter, so that 0 * inf is
/// not formed, as in the libraries' hard-label kernels.
template <class T, class NegativeLog>
T hard_loss(const Row<T>& row, const HardTarget<T>& target, NegativeLog negative_log) {
  if (!target.is_smooth()) return target.weight(target.label()) * negative_log(target.label());
  return sequential_sum<T>(row.n, [&](std::size_t j) {
    const T mass = target.mass(j);
    return mass == 0 ? T(0) : mass * negative_log(j);
  });
}

}  // namespace sumzero::textbook
