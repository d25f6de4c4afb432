#include "oracle/survey.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oracle/ulp.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Place of a number among the codes of its format, -input_steps .. input_steps.
int input_place(Format format, double value) {
  const double share = static_cast<double>(ordinal(format, value)) / static_cast<double>(ordinal(format, largest_finite(format)));
  return static_cast<int>(std::lround(std::clamp(share, -1.0, 1.0) * Profile::input_steps));
}

int error_place(double ulp) {
  const double size = std::fabs(ulp);
  if (!(size > 0)) return Profile::lowest_error;
  return std::max(Profile::lowest_error, static_cast<int>(std::floor(Profile::survival_steps * std::log2(std::min(size, 0x1p1000)))));
}

std::string layout_of(const Tensor& tensor) {
  const auto has = [&](auto test) {
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      if (tensor.shape[i] > 1 && test(tensor.strides[i])) return true;
    return false;
  };
  if (has([](std::int64_t stride) { return stride == 0; })) return "broadcast";
  if (has([](std::int64_t stride) { return stride < 0; })) return "reversed";
  if (tensor.is_contiguous()) return tensor.offset != 0 ? "offset" : "contiguous";
  return tensor.strides.back() == 1 ? "padded" : "transposed";
}

}  // namespace

void survey(const Judge& judge, const Case& input, const std::vector<Tensor>& outputs, Profile& profile) {
  const Signature& signature = judge.signature();
  ++profile.cases;
  const int logits = signature.input_with(Role::logits);
  const Tensor* x = logits < 0 ? nullptr : &input.inputs.at(signature.inputs[static_cast<std::size_t>(logits)].name);
  // Elsewhere the tensor of most elements stands for the layout.
  const Tensor* main = x;
  for (const auto& [name, tensor] : input.inputs)
    if (!x && is_floating(tensor.format) && (!main || tensor.elements() > main->elements())) main = &tensor;
  const std::int64_t length = normalised_extent(signature, input);
  const int length_place = static_cast<int>(std::lround(2 * std::log2(static_cast<double>(std::max<std::int64_t>(1, length)))));
  ProfileCell* layout = main == nullptr || main->elements() == 0
                            ? nullptr
                            : &profile.by_layout[{layout_of(*main), static_cast<int>(std::ceil(std::log2(static_cast<double>(main->elements()))))}];
  const auto lead = [&](std::int64_t row, double& largest) {
    double first = -infinity, second = -infinity;
    for (std::int64_t j = 0; j < length; ++j) {
      const double value = x->get(row * length + j);
      if (!std::isfinite(value)) continue;
      if (value > first) second = first, first = value;
      else second = std::max(second, value);
    }
    largest = first;
    return first - second;
  };
  judge.survey(input, outputs, [&](const SurveyRow& row) {
    const OutputSpec& spec = signature.outputs[static_cast<std::size_t>(row.output)];
    Profile::Output& to = profile.outputs[spec.name];
    double largest = -infinity;
    const double gap = x ? lead(row.row, largest) : infinity;
    for (std::size_t j = 0; j < row.exact.size(); ++j) {
      const double exact = row.exact[j], ulp = row.ulp[j], bound = row.bound[j];
      if (!std::isfinite(exact) || std::isnan(ulp)) continue;
      const double at = !x ? exact : spec.shape == Shape::row ? x->get(row.row * length + static_cast<std::int64_t>(j)) : largest;
      if (std::isfinite(at)) to.by_input[input_place(x ? input.storage : row.format, round_to(x ? input.storage : row.format, at))].take(ulp, bound);
      if (exact != 0) to.by_binade[std::max(std::ilogb(exact), traits(row.format).min_exponent - traits(row.format).precision + 1)].take(ulp, bound);
      to.by_length[length_place].take(ulp, bound);
      ++to.errors[error_place(ulp)];
      if (layout && bound > 0) layout->take(std::fabs(ulp) / bound, 1);
    }
    if (row.gradient_sum_index && std::isfinite(gap)) {
      double& most = profile.sum_by_gap[static_cast<int>(std::min(2 * gap, 4000.0))];
      most = std::max(most, *row.gradient_sum_index);
    }
  });
  if (layout && layout->entries == 0) profile.by_layout.erase({layout_of(*main), static_cast<int>(std::ceil(std::log2(static_cast<double>(main->elements()))))});
}

}  // namespace sumzero
