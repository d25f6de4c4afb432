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
  Array<N> b, o;                 ///< probabilities
  Array<N> shift;                ///< d_i; unset where either is dead
  Array<N> difference;           ///< o - b
  Array<N> centred;              ///< x_i; unset where the base is dead
  Array<N> log_ratio;            ///< log o - log b; unset where either is dead
  N kl{0.0};
  bool irregular = false;        ///< NaN, +inf or no live entry on either side
  bool infinite = false;         ///< the other is dead where the base is live
  bool one_sided = false;        ///< some entry is dead on one side only
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
  for (auto* array : {&result.b, &result.o, &result.shift, &result.difference, &result.centred, &result.log_ratio}) array->resize(n);
  bool one_sided = false;
  for (std::size_t j = 0; j < n; ++j) {
    result.b[j] = q.p(j);
    result.o[j] = p.p(j);
    one_sided |= q.is_dead(j) != p.is_dead(j);
    result.infinite |= p.is_dead(j) && !q.is_dead(j);
  }
  result.one_sided = one_sided;
  if (!p.is_dead(k)) {
    const N t(temperature), offset = N(other[k]) - N(base[k]);
    for (std::size_t j = 0; j < n; ++j) {
      if (q.is_dead(j) || p.is_dead(j)) continue;
      const N d = (N(other[j]) - N(base[j])) - offset;
      result.shift[j] = temperature == 1 ? d : d / t;
    }
  }
  bool far = one_sided;
  if (!far) {
    const N mean = sum_of<N>(n, [&](std::size_t j) { return q.is_dead(j) ? N(0.0) : result.b[j] * result.shift[j]; });
    for (std::size_t j = 0; j < n; ++j) {
      if (q.is_dead(j)) continue;
      result.centred[j] = result.shift[j] - mean;
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

/// Quantities of the bounds. A kernel uses the difference form D4 while every d_i is at most 80 and both sides have the
/// same dead entries, and the two softmaxes directly beyond; `near` and `far` say which may apply (both within 1 of 80).
///   scalars: live, near, far, inv_d = 1/D with D = 1 + S, log_d = |log D|, other_tail, base_tail (ln((live-1)/r)),
///            loss_factor, gradient_factor (factor times T or 1/T)
///   arrays:  b, o, dz = |base_j - base_k|/T, dzo likewise of the other, d = |d_j|, dpos = max(d_j, 0), w = |expm1(d_j)|,
///            h = |log o_j - log b_j|, phi = b phi2(h), em = b |expm1(h)|, lo = |log o|, lb = |log b|, at_k
inline const std::vector<std::string>& divergence_scalars() {
  static const std::vector<std::string> names = {"live",       "near",      "far",         "inv_d",          "log_d",
                                                 "other_tail", "base_tail", "loss_factor", "gradient_factor"};
  return names;
}
inline const std::vector<std::string>& divergence_arrays() {
  static const std::vector<std::string> names = {"b", "o",       "dz",  "dzo", "d",  "dpos", "w",
                                                 "h_ratio", "phi", "em",  "lo", "lb",   "at_k"};
  return names;
}

template <class N>
void divergence_quantities(const Divergence<N>& row, RowProblem<N>& problem, const N& loss_factor,
                           const N& gradient_factor) {
  constexpr double outward = 1 + 0x1p-40;  // doubles derived below err by a few units in 2^-53 each
  const std::size_t n = problem.n;
  const TailState<N>&q = row.base, &p = row.other;
  std::vector<double>*arrays[13];
  for (std::size_t i = 0; i < 13; ++i) {
    arrays[i] = &problem.array(i);
    arrays[i]->assign(n, 0.0);
  }
  auto&[b, o, dz, dzo, d, dpos, w, h, phi, em, lo, lb, at_k] = arrays;
  double largest = 0;
  for (std::size_t j = 0; j < n; ++j) {
    (*at_k)[j] = j == q.k;
    (*b)[j] = magnitude_upper(row.b[j]);
    (*o)[j] = magnitude_upper(row.o[j]);
    if (!q.is_dead(j)) {
      (*dz)[j] = magnitude_upper(q.d[j]);
      (*lb)[j] = magnitude_upper(q.log_p(j));
    }
    if (!p.is_dead(j)) {
      (*dzo)[j] = magnitude_upper(p.d[j]);
      (*lo)[j] = magnitude_upper(p.log_p(j));
    }
    if (q.is_dead(j) || p.is_dead(j)) continue;
    const double size = p.is_dead(q.k) ? 0 : magnitude_upper(row.shift[j]);
    const bool positive = size > 0 && midpoint_hint(row.shift[j]) > 0;
    (*d)[j] = size;
    (*dpos)[j] = positive ? size : 0;
    largest = std::max(largest, (*dpos)[j]);
    (*w)[j] = size > 82 && positive ? 0 : std::fabs(std::expm1(positive ? size : -size)) * outward;
    const double ratio = midpoint_hint(row.log_ratio[j]), ratio_size = magnitude_upper(row.log_ratio[j]);
    (*h)[j] = ratio_size;
    // b expm1(h) = o - b and b phi2(h) = (o - b) - b h; by series where h is small.
    const double signed_size = ratio < 0 ? -ratio_size : ratio_size;
    (*em)[j] = std::min((*b)[j] * std::fabs(std::expm1(signed_size)), (*o)[j] + (*b)[j]) * outward;
    (*phi)[j] = std::min((*b)[j] * magnitude_upper(phi2(Ball(signed_size))), (*o)[j] + (*b)[j] * (1 + ratio_size)) * outward;
  }
  double s = 0, tail = 0;
  for (std::size_t j = 0; j < n; ++j) {
    const double sign = (*dpos)[j] > 0 ? 1 : -1;
    s += sign * (*b)[j] * (*w)[j];
    if (j != q.k) tail += (*b)[j] * (1 + sign * (*w)[j]);
  }
  // D = 1 + S = sum b e^d, also as b_k + sum b (1 + w) when S is near -1: the larger lower bound of the two.
  const double d_lower = std::max(1 + s - (1 + std::fabs(s)) * 0x1p-40, ((*b)[q.k] + tail) * (1 - 0x1p-30) - 0x1p-50);
  const bool near = !row.one_sided && largest < 81;
  problem.scalar(0, static_cast<double>(std::max(q.live, p.live)));
  problem.scalar(1, near);
  problem.scalar(2, row.one_sided || largest > 79);
  const double inverse = near && d_lower > 0 ? 1 / d_lower : near ? 0x1p53 : 0;
  problem.scalar(3, inverse * outward);
  problem.scalar(4, near && d_lower > 0 ? std::fabs(std::log(d_lower)) * outward + 0x1p-40 * std::fabs(s) : 0);
  problem.scalar(5, log_inverse_tail(p));
  problem.scalar(6, log_inverse_tail(q));
  problem.scalar(7, magnitude_upper(loss_factor));
  problem.scalar(8, magnitude_upper(gradient_factor));
}

/// Signature shared by the distillation losses: student and teacher logits, temperature, T^2 factor, reduction.
inline Signature distillation_signature(std::string name, std::string summary) {
  Signature s;
  s.name = std::move(name);
  s.summary = std::move(summary);
  s.inputs = {{"s", Role::logits, Shape::row},
              {"t", Role::teacher_logits, Shape::row},
              {"g", Role::upstream, Shape::reduced, Element::storage, true, 0}};
  s.outputs = {{"loss", Shape::reduced, Element::storage, non_negative | exact_zero},
               {"ds", Shape::row, Element::storage, zero_sum | exact_zero | linear_upstream, 0},
               {"dt", Shape::row, Element::storage, zero_sum | exact_zero | linear_upstream, 1}};
  s.attributes = {{"T", 1.0, 0.0, 0x1p100, true, {}},
                  {"scale_T2", 1.0, 0.0, 1.0, false, {"false", "true"}},
                  reduction_attribute(Reduction::mean)};
  s.quantities = divergence_scalars();
  s.arrays = divergence_arrays();
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
  if (problem.wants_quantities()) divergence_quantities(row, problem, factors.loss, scale);
}

}  // namespace sumzero
