// cross_entropy with hard labels: ignore_index, class weights w, label smoothing a, reductions.
//
//   loss = (1-a) w_t nll + (a/n) sum_j w_j (-logp_j), nll = (m - x_t) + log1p(r)
//   gx = factor [ (1-a) w_t D2 + (a/n) (p_j W - w_j) ], W = sum w
//   D2:  j != t: e_j/s;  t = k: -r/s;  t != k: -(1 + (r - e_t))/s
// factor = upstream / denominator. D2 never subtracts p from 1, so the target's gradient survives any lead of its logit
// (Softmax Collapse: Prieto, Barsbey, Mediano, Birdal, ICLR 2025, arXiv 2501.04697).
#pragma once

#include "reference/register.hpp"
#include "reference/softmax/tail_state.hpp"

namespace sumzero {

/// `all_ignored_policy`: what the mean over no kept row gives.
inline AttributeSpec all_ignored_policy_attribute() { return {"all_ignored_policy", 0, 0, 1, false, {"nan", "zero"}}; }

struct CrossEntropy {
  static Signature signature() {
    Signature s;
    s.name = "cross_entropy";
    s.summary = "cross-entropy of logits and hard labels: weights, smoothing, ignored rows, reductions, and gradient";
    s.inputs = {{"x", Role::logits, Shape::row},
                {"label", Role::label, Shape::per_row, Element::index},
                {"weight", Role::weights, Shape::classes, Element::storage, true},
                {"g", Role::upstream, Shape::reduced, Element::storage, true, 0}};
    s.outputs = {{"loss", Shape::reduced, Element::storage, non_negative | shift_invariant},
                 {"gx", Shape::row, Element::storage,
                  zero_sum | exact_zero | shift_invariant | linear_upstream | negative_only_at_target, 0}};
    s.attributes = {{"label_smoothing", 0.0, 0.0, 1.0, false, {}},
                    {"ignore_index", -100.0, -0x1p53, 0x1p53, false, {}},
                    reduction_attribute(Reduction::mean),
                    inf_policy_attribute(),
                    masked_policy_attribute(),
                    all_ignored_policy_attribute()};
    s.quantities = tail_scalars();
    // smoothing = a, smoothed = (a > 0), weight = w_t, weight_sum = W
    s.quantities.insert(s.quantities.end(), {"factor", "smoothing", "smoothed", "weight", "weight_sum"});
    s.arrays = tail_arrays();
    // |D2_j| at the target and 0 elsewhere; p_j elsewhere and 0 at the target; w_j
    s.arrays.insert(s.arrays.end(), {"hard_target", "hard_others", "class_weight"});
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    Array<N>& hard = thread_scratch<Array<N>>();
    const std::size_t n = problem.n;
    const std::size_t t = static_cast<std::size_t>(problem.label);
    const double* weight = problem.in[2];
    const double a = problem.attribute[0];
    const auto w = [&](std::size_t j) { return weight ? weight[j] : 1.0; };
    tail_state<N>(problem.in[0], n, state);
    if (state.row_class != RowClass::regular) return irregular(state, problem, t);

    const bool target_dead = state.is_dead(t);
    hard.resize(n);
    each(n, [&](std::size_t j) { hard[j] = state.p(j); });
    if (target_dead) hard[t] = N(-1.0);
    else if (t == state.k) hard[t] = -(state.r / state.s);
    else hard[t] = -((N(1.0) + others(state, t)) / state.s);

    // loss: every term is non-negative.
    Array<N>& loss = problem.out(0);
    const double infinity = std::numeric_limits<double>::infinity();
    if ((target_dead && a < 1 && w(t) > 0)) loss[0] = N(infinity);
    else loss[0] = target_dead ? N(0.0) : (N(1.0) - N(a)) * N(w(t)) * (state.log_s - state.d[t]);
    if (a > 0 && !is_special(loss[0])) {
      bool infinite = false;
      for (std::size_t j = 0; j < n; ++j) infinite |= state.is_dead(j) && w(j) > 0;
      if (infinite) loss[0] = N(infinity);
      else
        loss[0] = loss[0] + N(a) / N(static_cast<double>(n)) * sum_of<N>(n, [&](std::size_t j) {
                    return state.is_dead(j) ? N(0.0) : N(w(j)) * (state.log_s - state.d[j]);
                  });
    }
    N weight_sum(static_cast<double>(n));
    if (weight && a > 0) weight_sum = sum_of<N>(n, [&](std::size_t j) { return N(w(j)); });

    Array<N>& gx = problem.out(1);
    const N hard_part = (N(1.0) - N(a)) * N(w(t));
    const N smooth_part = N(a) / N(static_cast<double>(n));
    const N factor = problem.factor, target_weight(w(t));
    if (a > 0) {
      each(n, [&](std::size_t j) {
        gx[j] = factor * (hard_part * hard[j] + smooth_part * (state.p(j) * weight_sum - N(w(j))));
      });
    } else if (weight) {
      each(n, [&](std::size_t j) { gx[j] = factor * (target_weight * hard[j]); });
    } else {
      each(n, [&](std::size_t j) { gx[j] = factor * hard[j]; });
    }
    if (is_special(problem.factor)) problem.fill(1, std::nan(""));
    if (!problem.wants_quantities()) return;
    tail_quantities(state, problem);
    problem.scalar(4, magnitude_upper(problem.factor));
    problem.scalar(5, a);
    problem.scalar(6, a > 0);
    problem.scalar(7, w(t));
    problem.scalar(8, magnitude_upper(weight_sum));
    std::vector<double>&target = problem.array(2), &others = problem.array(3), &class_weight = problem.array(4);
    each(n, [&](std::size_t j) {
      target[j] = 0;
      others[j] = magnitude_upper(hard[j]);
      class_weight[j] = w(j);
    });
    std::swap(target[t], others[t]);
  }

 private:
  /// r - e_t as a sum over the entries that are neither the maximum nor the target.
  template <class N>
  static N others(const TailState<N>& state, std::size_t t) {
    return sum_except<N>(state.d.size(), state.k, [&](std::size_t j) {
      return j == t || state.is_dead(j) ? N(0.0) : state.e[j];
    });
  }

  template <class N>
  static void irregular(const TailState<N>& state, RowProblem<N>& problem, std::size_t t) {
    const double infinity = std::numeric_limits<double>::infinity();
    const bool limit = state.row_class == RowClass::plus_infinity && state.infinities == 1 &&
                       problem.attribute[3] != 0 && problem.attribute[0] == 0;
    const bool zeros = state.row_class == RowClass::empty && problem.attribute[4] != 0;
    problem.fill(0, limit ? (t == state.k ? 0.0 : infinity) : zeros ? 0.0 : std::nan(""));
    problem.fill(1, limit || zeros ? 0.0 : std::nan(""));
    if (limit && t != state.k) {
      const N scale = problem.factor * N(problem.in[2] ? problem.in[2][t] : 1.0);
      problem.out(1)[t] = -scale;
      problem.out(1)[state.k] = scale;
      if (!problem.wants_quantities()) return;
      // D2 is -1 and 1 there; what a kernel rounds is the factor and its product with the weight.
      problem.scalar(4, magnitude_upper(problem.factor));
      problem.scalar(7, problem.in[2] ? problem.in[2][t] : 1.0);
      problem.array(2)[t] = 1;
      problem.array(3)[state.k] = 1;
    }
  }
};

SUMZERO_OPERATOR(CrossEntropy)

}  // namespace sumzero
