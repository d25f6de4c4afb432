// softmax over { scale x_j + bias_j : mask_j }. scale and bias enter exactly; masked entries have p = 0 and gradient 0.
//
//   gx = scale gs, gbias = gs, gscale = sum_j gs_j x_j, with gs the softmax VJP of the scaled row.
// The operator `softmax` is the case scale = 1 without bias and mask.
#pragma once

#include "reference/softmax/softmax.hpp"

namespace sumzero {

struct ScaledMaskedSoftmax {
  static Signature signature() {
    Signature s;
    s.name = "softmax.scaled_masked";
    s.summary = "softmax of scale * x + bias over the unmasked entries, with the gradients of x, bias and scale";
    s.inputs = {{"x", Role::logits, Shape::row},
                {"bias", Role::bias, Shape::row, Element::storage, true},
                {"mask", Role::mask, Shape::row, Element::boolean, true},
                {"g", Role::upstream, Shape::row, Element::storage, true, 0}};
    s.outputs = {{"p", Shape::row, Element::storage, sums_to_one | non_negative | at_most_one},
                 {"gx", Shape::row, Element::storage, zero_sum | exact_zero | linear_upstream, 0},
                 {"gbias", Shape::row, Element::storage, zero_sum | exact_zero | linear_upstream, 1},
                 {"gscale", Shape::per_row, Element::storage, linear_upstream}};
    s.attributes = {{"scale", 1.0, 0.0, 0x1p120, true, {}}, inf_policy_attribute(), masked_policy_attribute()};
    s.quantities = tail_scalars();
    // product_max: largest |scale x_j| + |bias_j| + |scale x_j + bias_j| of a live entry, what a rounded logit may lose
    // a relative u of; gx_abs: sum |gs_j x_j|.
    s.quantities.insert(s.quantities.end(), {"c_max", "pc", "pcd", "scale", "product_max", "x_max"});
    s.arrays = tail_arrays();
    s.arrays.insert(s.arrays.end(), {"c", "x"});
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    TailState<N>& state = thread_scratch<TailState<N>>();
    const std::size_t n = problem.n;
    const double* x = problem.in[0];
    const double* bias = problem.in[1];
    const double* mask = problem.in[2];
    const double* g = problem.in[3];
    const double scale = problem.attribute[0];
    const double dead = -std::numeric_limits<double>::infinity();
    const N exact_scale(scale);
    const auto hint = [&](std::size_t j) {
      if (mask && mask[j] == 0) return dead;
      return scale * x[j] + (bias ? bias[j] : 0.0);
    };
    const auto difference = [&](std::size_t j, std::size_t k) {
      const N scaled = exact_scale * (N(x[j]) - N(x[k]));
      return bias ? scaled + (N(bias[j]) - N(bias[k])) : scaled;
    };
    tail_state<N>(n, hint, difference, state);
    if (state.row_class != RowClass::regular) return irregular_softmax(state, problem, 1);

    write_softmax(state, problem, g);
    Array<N>& gx = problem.out(1);
    Array<N>& gbias = problem.out(2);
    each(n, [&](std::size_t j) {
      const N gs = gx[j];
      gbias[j] = gs;
      gx[j] = exact_scale * gs;
    });
    problem.out(3)[0] = sum_of<N>(n, [&](std::size_t j) {
      return state.is_dead(j) ? N(0.0) : gbias[j] * N(x[j]);
    });
    if (!problem.wants_quantities()) return;
    double product_max = 0, x_max = 0;
    for (std::size_t j = 0; j < n; ++j) {
      problem.array(3)[j] = state.is_dead(j) ? 0 : std::fabs(x[j]);
      if (state.is_dead(j)) continue;
      const double b = bias ? std::fabs(bias[j]) : 0.0;
      product_max = std::max(product_max, std::fabs(scale * x[j]) + b);
      x_max = std::max(x_max, std::fabs(x[j]));
    }
    problem.scalar(7, scale);
    problem.scalar(8, product_max * (1 + 0x1p-50));
    problem.scalar(9, x_max);
  }
};

SUMZERO_OPERATOR(ScaledMaskedSoftmax)

}  // namespace sumzero
