// softmax.merge: two (m, r) states to one. With m1 >= m2 and w = exp(m2 - m1):
//
//   m = m1, r = r1 + (1 + r2) w
//   gm1 = gm - gr (1 + r2) w, gm2 = gr (1 + r2) w, gr1 = gr, gr2 = gr w
// and the same with the roles exchanged when m2 > m1 (at equality the first operand counts as the larger). A set
// `empty` flag makes an operand the identity: the result is the other operand, bit for bit, with its gradients. An
// operand with m = +inf or any NaN gives r = NaN and NaN gradients.
#pragma once

#include <cmath>

#include "reference/register.hpp"

namespace sumzero {

struct SoftmaxMerge {
  static Signature signature() {
    Signature s;
    s.name = "softmax.merge";
    s.summary = "two (m, r) states merged into one, with gradients";
    const auto scalar = [](std::string name, Role role, Element element, int upstream_of = -1) {
      return InputSpec{std::move(name), role, Shape::per_row, element, upstream_of >= 0, upstream_of};
    };
    s.inputs = {scalar("m1", Role::state_maximum, Element::accumulator),
                scalar("r1", Role::state_tail, Element::accumulator),
                scalar("e1", Role::state_empty, Element::boolean),
                scalar("m2", Role::state_maximum, Element::accumulator),
                scalar("r2", Role::state_tail, Element::accumulator),
                scalar("e2", Role::state_empty, Element::boolean),
                scalar("gm", Role::upstream, Element::accumulator, 0),
                scalar("gr", Role::upstream, Element::accumulator, 1)};
    const auto result = [](std::string name, Element element, std::uint32_t marks, int gradient_of = -1) {
      return OutputSpec{std::move(name), Shape::per_row, element, marks, gradient_of};
    };
    s.outputs = {result("m", Element::accumulator, 0),
                 result("r", Element::accumulator, non_negative),
                 result("empty", Element::boolean, 0),
                 result("gm1", Element::accumulator, linear_upstream, 0),
                 result("gr1", Element::accumulator, linear_upstream, 1),
                 result("gm2", Element::accumulator, linear_upstream, 3),
                 result("gr2", Element::accumulator, linear_upstream, 4)};
    // gap = |m1 - m2|, smaller = 1 + r of the smaller, moved = smaller w, gr, w.
    s.quantities = {"gap", "smaller", "moved", "gr", "w"};
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    const auto in = [&](std::size_t i) { return problem.in[i] ? *problem.in[i] : 0.0; };
    const double m1 = in(0), r1 = in(1), m2 = in(3), r2 = in(4), gm = in(6), gr = in(7);
    const bool empty1 = in(2) != 0, empty2 = in(5) != 0;
    const auto write = [&](N m, N r, bool empty, N gm1, N gr1, N gm2, N gr2) {
      problem.out(0)[0] = m;
      problem.out(1)[0] = r;
      problem.out(2)[0] = N(empty ? 1.0 : 0.0);
      problem.out(3)[0] = gm1;
      problem.out(4)[0] = gr1;
      problem.out(5)[0] = gm2;
      problem.out(6)[0] = gr2;
    };
    const N zero(0.0);
    if (empty1 && empty2)
      return write(N(-std::numeric_limits<double>::infinity()), zero, true, zero, zero, zero, zero);
    if (empty2) return write(N(m1), N(r1), false, N(gm), N(gr), zero, zero);
    if (empty1) return write(N(m2), N(r2), false, zero, zero, N(gm), N(gr));
    if (!std::isfinite(m1) || !std::isfinite(m2) || !std::isfinite(r1) || !std::isfinite(r2)) {
      const N nan(std::nan(""));
      const double m = std::isnan(m1) || std::isnan(m2) ? std::nan("") : std::max(m1, m2);
      return write(N(m), nan, false, nan, nan, nan, nan);
    }
    const bool first = m1 >= m2;
    const N w = first ? exp(N(m2) - N(m1)) : exp(N(m1) - N(m2));
    const N smaller = N(1.0) + N(first ? r2 : r1), moved = smaller * w;
    const N r = N(first ? r1 : r2) + moved;
    const N of_larger = N(gm) - N(gr) * moved, of_smaller = N(gr) * moved;
    if (first) write(N(m1), r, false, of_larger, N(gr), of_smaller, N(gr) * w);
    else write(N(m2), r, false, of_smaller, N(gr) * w, of_larger, N(gr));
    if (!problem.wants_quantities()) return;
    problem.scalar(0, std::fabs(m1 - m2) * (1 + 0x1p-50));
    problem.scalar(1, magnitude_upper(smaller));
    problem.scalar(2, magnitude_upper(moved));
    problem.scalar(3, std::fabs(gr));
    problem.scalar(4, magnitude_upper(w));
  }
};

SUMZERO_OPERATOR(SoftmaxMerge)

}  // namespace sumzero
