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
    // a, b: |a_i|, |b_i|; y: condition of the log1p that gave them; va, vb: the two terms of the loss; wa, wb: the terms
    // with expm1 in place of phi2.
    s.quantities.insert(s.quantities.end(), {"beta", "rest"});
    s.arrays.insert(s.arrays.end(), {"ja", "jb", "y", "va", "vb", "wa", "wb"});
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    Divergence<N>& row = thread_scratch<Divergence<N>>();
    auto& [a, b] = thread_scratch<std::array<Array<N>, 2>>();
    const std::size_t n = problem.n;
    divergence<N>(problem.in[1], problem.in[0], n, problem.attribute[0], row);
    if (row.irregular) {
      for (std::size_t output = 0; output < 3; ++output) problem.fill(output, std::nan(""));
      return;
    }
    const TemperatureFactors<N> factors(problem.attribute);
    const N beta(problem.attribute[3]), rest = N(1.0) - beta;
    const Array<N>&q = row.b, &p = row.o;
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
    if (problem.wants_quantities()) {
      divergence_quantities(row, problem, factors.loss, scale);
      quantities(row, a, b, problem);
    }
  }

 private:
  template <class N>
  static void quantities(const Divergence<N>& row, const Array<N>& a, const Array<N>& b,
                         RowProblem<N>& problem) {
    constexpr double outward = 1 + 0x1p-40;
    const double beta = problem.attribute[3], rest = 1 - beta;
    const std::size_t slot = divergence_arrays().size();
    problem.scalar(divergence_scalars().size(), beta);
    problem.scalar(divergence_scalars().size() + 1, rest);
    for (std::size_t i = slot; i < slot + 7; ++i) problem.array(i).assign(problem.n, 0.0);
    // w |expm1(l)| and w phi2(l), both at most M + w (1 + |l|) with M the mixture.
    const auto terms = [&](double w, double l, double size, double mixed, double& by_expm1, double& by_phi2) {
      const double signed_size = l < 0 ? -size : size, cap = mixed + w * (1 + size);
      by_expm1 = std::min(w * std::fabs(std::expm1(signed_size)), cap) * outward;
      by_phi2 = std::min(w * magnitude_upper(phi2(Ball(signed_size))), cap) * outward;
    };
    for (std::size_t j = 0; j < problem.n; ++j) {
      const bool dead_q = row.base.is_dead(j), dead_p = row.other.is_dead(j);
      const double q = problem.array(0)[j], p = problem.array(1)[j], mixed = (beta * q + rest * p) * outward;
      double ja = 0, jb = 0, wa = 0, wb = 0, va = dead_q ? mixed : 0, vb = dead_p ? mixed : 0;
      if (!dead_q) ja = magnitude_upper(a[j]), terms(q, midpoint_hint(a[j]), ja, mixed, wa, va);
      if (!dead_p) jb = magnitude_upper(b[j]), terms(p, midpoint_hint(b[j]), jb, mixed, wb, vb);
      // |y|/(1+y) with y the argument of the log1p: 1 + y = M/q or M/p, at least beta or rest.
      const double lower = midpoint_hint(row.log_ratio[j]) < 0 ? beta : rest;
      if (!dead_q && !dead_p) {
        const double y = (midpoint_hint(row.log_ratio[j]) < 0 ? rest : beta) * -std::expm1(-problem.array(7)[j]);
        problem.array(slot + 2)[j] = y / std::max(lower, 1 - y) * outward;
      }
      problem.array(slot)[j] = ja;
      problem.array(slot + 1)[j] = jb;
      problem.array(slot + 3)[j] = beta * va * outward;
      problem.array(slot + 4)[j] = rest * vb * outward;
      problem.array(slot + 5)[j] = beta * wa * outward;
      problem.array(slot + 6)[j] = rest * wb * outward;
    }
  }
};

SUMZERO_OPERATOR(GeneralisedJsd)

}  // namespace sumzero
