#include "reference/evaluate.hpp"

namespace sumzero {

CaseEvaluator::CaseEvaluator(const OperatorReference& reference, const Case& input)
    : reference_(reference), input_(input) {
  validate(signature(), input);
  attributes_ = attribute_values(signature(), input);
  reduction_ = reduction_of(signature(), attributes_);
  for (std::size_t i = 0; i < signature().inputs.size(); ++i) {
    const InputSpec& spec = signature().inputs[i];
    const auto found = input.inputs.find(spec.name);
    if (found == input.inputs.end()) continue;
    tensors_[i] = &found->second;
    if (spec.role == Role::upstream && spec.shape == Shape::reduced) upstream_ = static_cast<int>(i);
    buffers_[i].resize(static_cast<std::size_t>(part_elements(spec.shape, input)));
    if (spec.shape == Shape::classes)
      for (std::size_t j = 0; j < classes(); ++j) buffers_[i][j] = found->second.get(static_cast<std::int64_t>(j));
  }
  if (reduction_ == Reduction::mean) mean_over_nothing_ = !(midpoint_hint(denominator<Ball>()) > 0);
}

bool CaseEvaluator::kept(std::int64_t row) const {
  return row_is_kept(signature(), attributes_, label_of(signature(), input_, row));
}

double CaseEvaluator::loss_over_nothing() const {
  const int policy = signature().attribute("all_ignored_policy");
  return policy >= 0 && attributes_[static_cast<std::size_t>(policy)] != 0 ? 0.0 : std::nan("");
}

const std::array<const double*, max_inputs>& CaseEvaluator::row_inputs(std::int64_t row) {
  for (std::size_t i = 0; i < signature().inputs.size(); ++i) {
    if (!tensors_[i]) continue;
    pointers_[i] = buffers_[i].data();
    const InputSpec& spec = signature().inputs[i];
    if (spec.shape == Shape::classes || spec.shape == Shape::reduced) continue;
    load_part(part_of(*tensors_[i], spec.shape, input_, row), tensors_[i]->format, buffers_[i].data());
  }
  return pointers_;
}

}  // namespace sumzero
