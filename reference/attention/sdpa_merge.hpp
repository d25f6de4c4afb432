// Merge of two partial attention results (o_1, L_1) and (o_2, L_2) over disjoint keys, and its gradients.
//
//   L = logaddexp(L_1, L_2), w_i = e^(L_i - L), o = w_1 o_1 + w_2 o_2
//   go_i = w_i go, gL_i = w_i (go . (o_i - o) + gL) with o_i - o = w_other (o_i - o_other)
// A part with L_i = -inf is empty: weight 0, no gradient. Both empty: o = 0, L = -inf.
#pragma once

#include "reference/register.hpp"

namespace sumzero {

struct SdpaMerge {
  static Signature signature() {
    Signature s;
    s.name = "sdpa.merge";
    s.summary = "merge of two partial attention outputs by their log-sum-exp, with gradients";
    s.inputs = {{"o1", Role::partial_output, Shape::row},
                {"l1", Role::partial_lse, Shape::per_row, Element::accumulator},
                {"o2", Role::partial_output, Shape::row},
                {"l2", Role::partial_lse, Shape::per_row, Element::accumulator},
                {"go", Role::upstream, Shape::row, Element::storage, true, 0},
                {"gl", Role::upstream, Shape::per_row, Element::accumulator, true, 1}};
    s.outputs = {{"o", Shape::row},
                 {"l", Shape::per_row, Element::accumulator},
                 {"go1", Shape::row, Element::storage, linear_upstream, 0},
                 {"gl1", Shape::per_row, Element::accumulator, linear_upstream, 1},
                 {"go2", Shape::row, Element::storage, linear_upstream, 2},
                 {"gl2", Shape::per_row, Element::accumulator, linear_upstream, 3}};
    // small: the smaller weight; f1, f2: 1 for the part of the smaller weight, else that weight; pull: sum |go| |o1 - o2|.
    s.quantities = {"gap", "small", "w1", "w2", "f1", "f2", "pull", "gl"};
    s.arrays = {"o_large", "o_moved", "o_other", "given"};
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    const std::size_t n = problem.n;
    const double *go = problem.in[4], l1 = *problem.in[1], l2 = *problem.in[3], gl = problem.has(5) ? *problem.in[5] : 0;
    const bool empty1 = std::isinf(l1), empty2 = std::isinf(l2), first = l1 >= l2;
    if (empty1 || empty2) return only(problem, empty1, empty2, gl);
    const double *large = problem.in[first ? 0 : 2], *small = problem.in[first ? 2 : 0];
    const N gap = N(first ? l2 : l1) - N(first ? l1 : l2), ratio = exp(gap), total = N(1.0) + ratio;
    const N w_large = N(1.0) / total, w_small = ratio / total;
    problem.out(1)[0] = N(first ? l1 : l2) + log1p(ratio);
    N pull(0.0);
    for (std::size_t c = 0; c < n; ++c) {
      const N difference = N(small[c]) - N(large[c]), upstream(go ? go[c] : 0.0);
      problem.out(0)[c] = N(large[c]) + w_small * difference;
      problem.out(first ? 2 : 4)[c] = w_large * upstream;
      problem.out(first ? 4 : 2)[c] = w_small * upstream;
      pull = pull + upstream * difference;
    }
    problem.out(first ? 3 : 5)[0] = w_large * (N(gl) - w_small * pull);
    problem.out(first ? 5 : 3)[0] = w_small * (N(gl) + w_large * pull);
    if (problem.wants_quantities()) quantities<N>(problem, gap, w_large, w_small, gl);
  }

 private:
  /// At least one part is empty: the other one passes unchanged.
  template <class N>
  static void only(RowProblem<N>& problem, bool empty1, bool empty2, double gl) {
    for (std::size_t i = 0; i < 6; ++i) problem.fill(i, 0.0);
    problem.out(1)[0] = N(-std::numeric_limits<double>::infinity());
    if (empty1 && empty2) return;
    const std::size_t part = empty1 ? 2 : 0;
    problem.out(1)[0] = N(*problem.in[part + 1]);
    problem.out(part + 3)[0] = N(gl);
    for (std::size_t c = 0; c < problem.n; ++c) {
      problem.out(0)[c] = N(problem.in[part][c]);
      if (problem.has(4)) problem.out(part + 2)[c] = N(problem.in[4][c]);
    }
  }

  template <class N>
  static void quantities(RowProblem<N>& problem, const N& gap, const N& w_large, const N& w_small, double gl) {
    constexpr double outward = 1 + 0x1p-30;
    const bool first = *problem.in[1] >= *problem.in[3];
    const double large = magnitude_upper(w_large), small = magnitude_upper(w_small);
    double pull = 0;
    for (std::size_t c = 0; c < problem.n; ++c) {
      const double upstream = problem.has(4) ? std::fabs(problem.in[4][c]) : 0;
      const double of_large = std::fabs(problem.in[first ? 0 : 2][c]), of_small = std::fabs(problem.in[first ? 2 : 0][c]);
      problem.array(0)[c] = large * of_large * outward;
      problem.array(1)[c] = small * (of_large + of_small) * outward;
      problem.array(2)[c] = of_small;
      problem.array(3)[c] = upstream;
      pull += upstream * std::fabs(problem.in[0][c] - problem.in[2][c]);
    }
    const double scalars[] = {magnitude_upper(gap), small, first ? large : small, first ? small : large, first ? small : 1, first ? 1 : small, pull * outward, std::fabs(gl)};
    for (std::size_t i = 0; i < std::size(scalars); ++i) problem.scalar(i, scalars[i]);
  }
};

SUMZERO_OPERATOR(SdpaMerge)

}  // namespace sumzero
