// Kullback-Leibler divergence of two tempered softmaxes without cancellation (P5), shared by the distillation losses.
//
// Base b = softmax(base/T), other o = softmax(other/T), k = argmax of the base. With d_i = ((other_i - base_i) -
// (other_k - base_k))/T, dbar = sum b_i d_i, x_i = d_i - dbar and phi2(v) = e^v - 1 - v:
//
//   S = sum b_i phi2(x_i),  KL(b || o) = log1p(S),  o_i - b_i = b_i (expm1(x_i) - S)/(1 + S),
//   log o_i - log b_i = x_i - log1p(S).
// Every term of S is non-negative; bitwise equal logits, or logits that differ by one constant, give exact zeros.
// Where some x_i is large, or an entry is dead on one side only, the direct form (difference of the two softmaxes,
// sum of b (log b - log o)) is used instead; both are exact everywhere.
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

template <class N>
struct Divergence {
  TailState<N> base, other;
  std::vector<N> b, o;           ///< probabilities
  std::vector<N> difference;     ///< o - b
  std::vector<N> centred;        ///< x_i; unset where the base is dead
  std::vector<N> log_ratio;      ///< log o - log b; unset where either is dead
  N kl{0.0};
  bool irregular = false;        ///< NaN, +inf or no live entry on either side
  bool infinite = false;         ///< the other is dead where the base is live
};

template <class N>
void divergence(const double* base, const double* other, std::size_t n, double temperature, Divergence<N>& result) {
  tail_state_divided<N>(base, n, temperature, result.base);
  tail_state_divided<N>(other, n, temperature, result.other);
  result.irregular =
      result.base.row_class != RowClass::regular || result.other.row_class != RowClass::regular;
  result.infinite = false;
  if (result.irregular) return;

  const TailState<N>&q = result.base, &p = result.other;
  const std::size_t k = q.k;
  for (auto* array : {&result.b, &result.o, &result.difference, &result.centred, &result.log_ratio}) array->resize(n);
  bool one_sided = false;
  for (std::size_t j = 0; j < n; ++j) {
    result.b[j] = q.p(j);
    result.o[j] = p.p(j);
    one_sided |= q.is_dead(j) != p.is_dead(j);
    result.infinite |= p.is_dead(j) && !q.is_dead(j);
  }
  bool far = one_sided;
  if (!far) {
    const N t(temperature), offset = N(other[k]) - N(base[k]);
    for (std::size_t j = 0; j < n; ++j) {
      if (q.is_dead(j)) continue;
      N d = (N(other[j]) - N(base[j])) - offset;
      result.centred[j] = temperature == 1 ? d : d / t;
    }
    const N mean = sum_of<N>(n, [&](std::size_t j) { return q.is_dead(j) ? N(0.0) : result.b[j] * result.centred[j]; });
    for (std::size_t j = 0; j < n; ++j) {
      if (q.is_dead(j)) continue;
      result.centred[j] = result.centred[j] - mean;
      far |= !(midpoint_hint(result.centred[j]) < 300);
    }
  }
  if (!far) {
    const N s = sum_of<N>(n, [&](std::size_t j) { return q.is_dead(j) ? N(0.0) : result.b[j] * phi2(result.centred[j]); });
    const N one_plus = N(1.0) + s;
    result.kl = log1p(s);
    for (std::size_t j = 0; j < n; ++j) {
      if (q.is_dead(j)) { result.difference[j] = N(0.0); continue; }
      result.difference[j] = result.b[j] * (expm1(result.centred[j]) - s) / one_plus;
      result.log_ratio[j] = result.centred[j] - result.kl;
    }
    return;
  }
  for (std::size_t j = 0; j < n; ++j) {
    result.difference[j] = result.o[j] - result.b[j];
    if (!q.is_dead(j) && !p.is_dead(j)) result.log_ratio[j] = p.log_p(j) - q.log_p(j);
  }
  if (result.infinite) return;
  result.kl = -sum_of<N>(n, [&](std::size_t j) {
    return q.is_dead(j) ? N(0.0) : result.b[j] * result.log_ratio[j];
  });
  for (std::size_t j = 0; j < n; ++j)
    if (!q.is_dead(j)) result.centred[j] = result.log_ratio[j] + result.kl;
}

/// Signature shared by the distillation losses: student and teacher logits, temperature, T^2 factor, reduction.
inline Signature distillation_signature(std::string name, std::string summary) {
  Signature s;
  s.name = std::move(name);
  s.summary = std::move(summary);
  s.inputs = {{"s", Role::logits, Shape::row},
              {"t", Role::teacher_logits, Shape::row},
              {"g", Role::upstream, Shape::reduced, Element::storage, true, 0}};
  s.outputs = {{"loss", Shape::reduced, Element::storage, non_negative},
               {"ds", Shape::row, Element::storage, zero_sum | linear_upstream, 0},
               {"dt", Shape::row, Element::storage, zero_sum | linear_upstream, 1}};
  s.attributes = {{"T", 1.0, 0.0, 0x1p100, true, {}},
                  {"scale_T2", 1.0, 0.0, 1.0, false, {"false", "true"}},
                  reduction_attribute(Reduction::mean)};
  return s;
}

/// Factors of the loss (T^2 or 1) and of its gradients (T or 1/T).
template <class N>
struct TemperatureFactors {
  N loss, gradient;
  explicit TemperatureFactors(const double* attribute)
      : loss(1.0), gradient(1.0) {
    const N t(attribute[0]);
    if (attribute[0] == 1) return;
    if (attribute[1] != 0) {
      loss = t * t;
      gradient = t;
    } else {
      gradient = N(1.0) / t;
    }
  }
};

/// Writes the KL losses. `other_gradient` and `base_gradient` are the output indices of the gradients with respect to the
/// logits of `other` and `base`: dL/dother = T (o - b), dL/dbase = -T b x.
template <class N>
void write_kl(const Divergence<N>& row, RowProblem<N>& problem, std::size_t other_gradient, std::size_t base_gradient) {
  if (row.irregular) {
    for (std::size_t output = 0; output < 3; ++output) problem.fill(output, std::nan(""));
    return;
  }
  const TemperatureFactors<N> factors(problem.attribute);
  const N scale = problem.factor * factors.gradient;
  problem.out(0)[0] = row.infinite ? N(std::numeric_limits<double>::infinity()) : factors.loss * row.kl;
  for (std::size_t j = 0; j < problem.n; ++j) {
    problem.out(other_gradient)[j] = scale * row.difference[j];
    problem.out(base_gradient)[j] = row.base.is_dead(j) ? N(0.0)
                                    : row.infinite      ? N(std::nan(""))
                                                        : -(scale * row.b[j] * row.centred[j]);
  }
  if (is_special(problem.factor)) {
    problem.fill(1, std::nan(""));
    problem.fill(2, std::nan(""));
  }
}

}  // namespace sumzero
