// jsd: generalised Jensen-Shannon divergence with teacher weight beta and temperature T.
//
//   M = beta q + (1-beta) p,  L = T^2 [ beta KL(q || M) + (1-beta) KL(p || M) ]
//     = T^2 sum_i [ beta q_i phi2(a_i) + (1-beta) p_i phi2(b_i) ],  a = log(M/q), b = log(M/p)
//   ds_i = -T (1-beta) p_i (b_i - sum p b),  dt_i = -T beta q_i (a_i - sum q a)
// With kappa = log p - log q: b = log1p(beta expm1(-kappa)) and a = kappa + b for kappa >= 0, and
// a = log1p((1-beta) expm1(kappa)), b = a - kappa below. q phi2(a) = M - q (1 + a), used where a is not small.
#pragma once

#include "reference/losses/divergence.hpp"

namespace sumzero {

struct GeneralisedJsd {
  static Signature signature() {
    Signature s = distillation_signature(
        "jsd", "distillation: generalised Jensen-Shannon divergence with teacher weight beta, both gradients");
    s.attributes.push_back({"beta", 0.5, 0.0, 1 - 0x1p-24, true, {}});
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    thread_local Divergence<N> row;
    thread_local std::vector<N> a, b;
    const std::size_t n = problem.n;
    divergence<N>(problem.in[1], problem.in[0], n, problem.attribute[0], row);
    if (row.irregular) {
      for (std::size_t output = 0; output < 3; ++output) problem.fill(output, std::nan(""));
      return;
    }
    const TemperatureFactors<N> factors(problem.attribute);
    const N beta(problem.attribute[3]), rest = N(1.0) - beta;
    const std::vector<N>&q = row.b, &p = row.o;
    a.resize(n);
    b.resize(n);
    const auto dead_q = [&](std::size_t j) { return row.base.is_dead(j); };
    const auto dead_p = [&](std::size_t j) { return row.other.is_dead(j); };
    for (std::size_t j = 0; j < n; ++j) {
      if (dead_q(j) || dead_p(j)) {
        if (!dead_q(j)) a[j] = log(beta);
        if (!dead_p(j)) b[j] = log(rest);
        continue;
      }
      const N& kappa = row.log_ratio[j];
      if (midpoint_hint(kappa) >= 0) {
        b[j] = log1p(beta * expm1(-kappa));
        a[j] = kappa + b[j];
      } else {
        a[j] = log1p(rest * expm1(kappa));
        b[j] = a[j] - kappa;
      }
    }
    const auto term = [&](std::size_t j, const N& w, const N& log_w) {
      if (std::fabs(midpoint_hint(log_w)) < 0.5) return w * phi2(log_w);
      return (beta * q[j] + rest * p[j]) - w * (N(1.0) + log_w);
    };
    const N sum = sum_of<N>(n, [&](std::size_t j) {
      const N mixed = beta * q[j] + rest * p[j];
      const N from_q = dead_q(j) ? mixed : term(j, q[j], a[j]);
      const N from_p = dead_p(j) ? mixed : term(j, p[j], b[j]);
      return dead_q(j) && dead_p(j) ? N(0.0) : beta * from_q + rest * from_p;
    });
    problem.out(0)[0] = factors.loss * sum;
    const N mean_b = sum_of<N>(n, [&](std::size_t j) { return dead_p(j) ? N(0.0) : p[j] * b[j]; });
    const N mean_a = sum_of<N>(n, [&](std::size_t j) { return dead_q(j) ? N(0.0) : q[j] * a[j]; });
    const N scale = problem.factor * factors.gradient;
    for (std::size_t j = 0; j < n; ++j) {
      problem.out(1)[j] = dead_p(j) ? N(0.0) : -(scale * rest * p[j] * (b[j] - mean_b));
      problem.out(2)[j] = dead_q(j) ? N(0.0) : -(scale * beta * q[j] * (a[j] - mean_a));
    }
    if (is_special(problem.factor)) {
      problem.fill(1, std::nan(""));
      problem.fill(2, std::nan(""));
    }
  }
};

SUMZERO_OPERATOR(GeneralisedJsd)

}  // namespace sumzero
