// Scaled dot-product attention: forward and backward of all heads that share one key-value head.
//
//   a_tj = tau q_t . k_j + bias_tj, capped to c tanh(a/c);  p_t = softmax of a_t over the visible keys (and the sink's logit 0)
//   o_t = sum_j p_tj v_j,  LSE_t = log sum_j e^a_tj
//   da_tj = p_tj (go_t . v_j - D_t + gLSE_t),  D_t = sum_j p_tj go_t . v_j
//
// The entry with the largest logit is the pivot k: values enter as v_j - v_k, which changes neither da nor, with v_k added back, o.
// So the weight of the pivot is never needed to more than its own digits, and equal values give o = v and da = 0 exactly.
// A query without an entry gives o = 0, LSE = -inf and zero gradients, or by policy NaN for all that belongs to it alone.
#pragma once

#include <algorithm>

#include "reference/attention/visibility.hpp"
#include "reference/register.hpp"

namespace sumzero {

/// One query of a problem: its entries, in key order with the sink last, and what they weigh.
template <class N>
struct AttentionRow {
  static constexpr std::size_t sink = ~std::size_t{0};
  std::vector<std::size_t> key;           // of every entry
  std::vector<N> product, logit, weight;  // q . k, the capped logit, p
  std::vector<N> slope;                   // derivative of the cap
  std::vector<N> pull, da;                // go . (v_j - v_pivot); adjoint of the logit before the cap
  std::size_t pivot = 0;
  N lse;
  bool capped = false;

  std::size_t size() const { return key.size(); }
  void clear() { key.clear(), product.clear(), logit.clear(), slope.clear(); }
};

/// c tanh(a/c) and 1 - tanh^2, through expm1 of a negative number. Either sign gives both exactly.
template <class N>
void cap_logit(const N& a, double cap, N& capped, N& slope) {
  const double sign = midpoint_hint(a) < 0 ? -1 : 1;
  const N twice = N(-2 * sign) * a / N(cap);
  const N z = expm1(twice), below = N(2.0) + z;
  capped = N(-sign * cap) * z / below;
  slope = N(4.0) * exp(twice) / (below * below);
}

/// Magnitudes that bounds need, in double precision rounded up; what a rounded logit, weight or product may lose is linear in
/// them. A key whose logit trails by more than 800 has no weight in any format and is left out.
struct AttentionMagnitudes {
  std::vector<double> size, gap, weight;  // |tau| sum |q k| + |bias|; distance to the pivot (and the capped logit); p
  std::vector<double> near;               // the exact distance
  std::vector<double> reach, product;     // |go| . |v_j|, |q| . |k_j|
  std::vector<double> lead;               // |go . (v_j - v_pivot)|
  std::vector<char> live;
};

struct Sdpa {
  enum Input : std::size_t { q, k, v, bias, mask, go, glse };
  enum Output : std::size_t { o, lse, gq, gk, gv, gbias, gtau };
  enum Attribute : std::size_t { tau, softcap, causal, window, sink, lse_base, empty_row_policy };

  static Signature signature() {
    Signature s;
    s.name = "sdpa";
    s.summary = "scaled dot-product attention with masks, causal order, window, softcap, grouped heads and a sink; gradients of all inputs";
    s.axes = Axes::attention;
    s.inputs = {{"q", Role::query, Shape::query},
                {"k", Role::key, Shape::key},
                {"v", Role::value, Shape::value},
                {"bias", Role::bias, Shape::scores, Element::storage, true},
                {"mask", Role::mask, Shape::scores, Element::boolean, true},
                {"go", Role::upstream, Shape::attended, Element::storage, true, 0},
                {"glse", Role::upstream, Shape::per_query, Element::accumulator, true, 1}};
    s.outputs = {{"o", Shape::attended},
                 {"lse", Shape::per_query, Element::accumulator},
                 {"gq", Shape::query, Element::storage, linear_upstream, 0},
                 {"gk", Shape::key, Element::storage, linear_upstream | zero_sum, 1},
                 {"gv", Shape::value, Element::storage, linear_upstream, 2},
                 {"gbias", Shape::scores, Element::storage, linear_upstream | zero_sum, 3},
                 {"gtau", Shape::per_query, Element::accumulator, linear_upstream}};
    s.attributes = {{"tau", 1.0, -0x1p40, 0x1p40, false, {}},
                    {"softcap", 0, 0, 0x1p40, false, {}},
                    {"causal", 0, 0, 2, false, {"none", "top_left", "bottom_right"}},
                    {"window", 0, 0, 0x1p40, false, {}},
                    {"sink", 0, 0, 1, false, {"none", "zero"}},
                    {"lse_base", 0, 0, 1, false, {"e", "2"}},
                    {"empty_row_policy", 0, 0, 1, false, {"zero", "nan"}}};
    // a_max, gap_max: largest size and gap of a live key; pull_max: largest |go| . |v|, |D| or |gLSE|.
    s.quantities = {"keys",  "rows",    "head_size", "value_size", "a_max", "gap_max", "v_max",
                    "tau_q", "tau_k",   "product_max", "pull_max", "go_max", "capped", "base"};
    for (const char* output : {"o", "l", "v", "q", "k", "b", "t", "pivot_q", "pivot_k", "pivot_b", "pivot_t"})
      for (const char* part : {"_size", "_gap", "_rest"}) s.arrays.push_back(std::string(output) + part);
    s.arrays.push_back("o_all");
    return s;
  }

  template <class N>
  static void row(RowProblem<N>& problem) {
    Evaluation<N>& evaluation = thread_scratch<Evaluation<N>>();
    evaluation.run(problem);
  }

 private:
  enum Scalar : std::size_t {
    s_keys, s_rows, s_head_size, s_value_size, s_a_max, s_gap_max, s_v_max, s_tau_q, s_tau_k, s_product_max, s_pull_max, s_go_max, s_capped, s_base
  };
  enum Array_ : std::size_t { a_o = 0, a_l = 3, a_v = 6, a_q = 9, a_k = 12, a_b = 15, a_t = 18, a_pivot = 12, a_all = 33 };

  template <class N>
  struct Evaluation {
    std::size_t group, queries, keys, head, width;
    AttentionRow<N> row;
    AttentionMagnitudes sizes;
    std::vector<N> key_sum, value_sum, query_sum;
    N base;

    void run(RowProblem<N>& problem) {
      const std::int64_t* extents = problem.extents;
      const auto extent = [&](std::size_t axis) { return static_cast<std::size_t>(extents[axis]); };
      group = extent(axis::heads) / extent(axis::kv_heads);
      queries = extent(axis::queries), keys = extent(axis::keys), head = extent(axis::head_size), width = extent(axis::value_size);
      const double* attribute = problem.attribute;
      base = attribute[lse_base] != 0 ? N(1.0) / log(N(2.0)) : N(1.0);
      key_sum.assign(keys * head, N(0.0));
      value_sum.assign(keys * width, N(0.0));
      if (problem.wants_quantities()) start_quantities(problem);
      const Visibility visible(attribute[causal], attribute[window], extents[axis::queries], extents[axis::keys]);
      bool plain = attribute[softcap] == 0 && attribute[sink] == 0;
      for (std::size_t t = 0; t < group * queries; ++t) {
        if (problem.has(glse) && problem.in[glse][t] != 0) plain = false;
        collect(problem, visible, t);
        if (row.size() == 0) write_empty(problem, t);
        else write_row(problem, t);
      }
      problem.values->sums_hold[gk] = problem.values->sums_hold[gbias] = plain;
      for (std::size_t i = 0; i < key_sum.size(); ++i) problem.out(gk)[i] = N(attribute[tau]) * key_sum[i];
      for (std::size_t i = 0; i < value_sum.size(); ++i) problem.out(gv)[i] = value_sum[i];
    }

    /// Entries and logits of query `t` of the group.
    void collect(const RowProblem<N>& problem, const Visibility& visible, std::size_t t) {
      const double* attribute = problem.attribute;
      const double* query = problem.in[q] + t * head;
      const double scale = attribute[tau], cap = attribute[softcap];
      row.clear();
      row.capped = cap > 0;
      for (std::size_t j = 0; j < keys; ++j) {
        const std::size_t score = t * keys + j;
        if (!visible(static_cast<std::int64_t>(t % queries), static_cast<std::int64_t>(j))) continue;
        if (problem.has(mask) && problem.in[mask][score] == 0) continue;
        if (problem.has(bias) && std::isinf(problem.in[bias][score])) continue;
        N product(0.0);
        for (std::size_t c = 0; c < head; ++c) product = product + N(query[c]) * N(problem.in[k][j * head + c]);
        N logit = N(scale) * product, slope(1.0);
        if (problem.has(bias)) logit = logit + N(problem.in[bias][score]);
        if (row.capped) cap_logit<N>(N(logit), cap, logit, slope);
        add(j, product, logit, slope);
      }
      if (attribute[sink] != 0) add(AttentionRow<N>::sink, N(0.0), N(0.0), N(0.0));
    }
    void add(std::size_t j, const N& product, const N& logit, const N& slope) {
      row.key.push_back(j), row.product.push_back(product), row.logit.push_back(logit), row.slope.push_back(slope);
    }

    void write_empty(RowProblem<N>& problem, std::size_t t) {
      const N value(problem.attribute[empty_row_policy] != 0 ? std::nan("") : 0.0);
      for (std::size_t c = 0; c < width; ++c) problem.out(o)[t * width + c] = value;
      problem.out(lse)[t] = N(-std::numeric_limits<double>::infinity());
      for (std::size_t c = 0; c < head; ++c) problem.out(gq)[t * head + c] = value;
      for (std::size_t j = 0; j < keys; ++j) problem.out(gbias)[t * keys + j] = value;
      problem.out(gtau)[t] = value;
    }

    void write_row(RowProblem<N>& problem, std::size_t t) {
      const std::size_t n = row.size();
      row.pivot = 0;
      for (std::size_t i = 1; i < n; ++i)
        if (midpoint_hint(row.logit[i]) > midpoint_hint(row.logit[row.pivot])) row.pivot = i;
      // Tail first: everything but the pivot's 1.
      row.weight.resize(n);
      N tail(0.0);
      for (std::size_t i = 0; i < n; ++i) {
        if (i == row.pivot) continue;
        row.weight[i] = exp(row.logit[i] - row.logit[row.pivot]);
        tail = tail + row.weight[i];
      }
      const N total = N(1.0) + tail;
      row.weight[row.pivot] = N(1.0);
      for (N& weight : row.weight) weight = weight / total;
      row.lse = row.logit[row.pivot] + log1p(tail);
      problem.out(lse)[t] = row.lse * base;

      for (std::size_t c = 0; c < width; ++c) {
        N moved(0.0);
        for (std::size_t i = 0; i < n; ++i)
          if (i != row.pivot) moved = moved + row.weight[i] * led(problem, i, c);
        problem.out(o)[t * width + c] = value(problem, row.pivot, c) + moved;
      }
      backward(problem, t);
      if (problem.wants_quantities()) add_quantities(problem, t);
    }

    N value(const RowProblem<N>& problem, std::size_t i, std::size_t c) const {
      return row.key[i] == AttentionRow<N>::sink ? N(0.0) : N(problem.in[v][row.key[i] * width + c]);
    }
    /// v_j - v_pivot.
    N led(const RowProblem<N>& problem, std::size_t i, std::size_t c) const { return value(problem, i, c) - value(problem, row.pivot, c); }

    void backward(RowProblem<N>& problem, std::size_t t) {
      const std::size_t n = row.size();
      const N upstream = problem.has(glse) ? N(problem.in[glse][t]) * base : N(0.0);
      row.pull.assign(n, N(0.0));
      row.da.assign(n, N(0.0));
      if (problem.has(go)) {
        const double* g = problem.in[go] + t * width;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t c = 0; c < width; ++c)
            if (i != row.pivot) row.pull[i] = row.pull[i] + N(g[c]) * led(problem, i, c);
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t c = 0; c < width && row.key[i] != AttentionRow<N>::sink; ++c) {
            N& sum = value_sum[row.key[i] * width + c];
            sum = sum + row.weight[i] * N(g[c]);
          }
      }
      N mean(0.0);
      for (std::size_t i = 0; i < n; ++i)
        if (i != row.pivot) mean = mean + row.weight[i] * row.pull[i];
      query_sum.assign(head, N(0.0));
      N scale_gradient(0.0);
      for (std::size_t j = 0; j < keys; ++j) problem.out(gbias)[t * keys + j] = N(0.0);
      sizes.lead.resize(n);
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t j = row.key[i];
        sizes.lead[i] = magnitude_upper(row.pull[i]);
        if (j == AttentionRow<N>::sink) continue;
        row.pull[i] = (row.pull[i] - mean) + upstream;
        N da = row.weight[i] * row.pull[i];
        if (row.capped) da = da * row.slope[i];
        row.da[i] = da;
        problem.out(gbias)[t * keys + j] = da;
        scale_gradient = scale_gradient + da * row.product[i];
        for (std::size_t c = 0; c < head; ++c) {
          query_sum[c] = query_sum[c] + da * N(problem.in[k][j * head + c]);
          N& sum = key_sum[j * head + c];
          sum = sum + da * N(problem.in[q][t * head + c]);
        }
      }
      problem.out(gtau)[t] = scale_gradient;
      for (std::size_t c = 0; c < head; ++c) problem.out(gq)[t * head + c] = N(problem.attribute[tau]) * query_sum[c];
    }

    // -------------------------------------------------------------------------------------------------------
    // Quantities of the bounds

    static double largest(const double* values, std::size_t count) {
      double most = 0;
      for (std::size_t i = 0; i < count && values; ++i) most = std::max(most, std::fabs(values[i]));
      return most;
    }

    void start_quantities(RowProblem<N>& problem) {
      const std::size_t rows = group * queries;
      const auto assign = [&](std::size_t first, std::size_t count) {
        for (std::size_t i = 0; i < 3; ++i) problem.array(first + i).assign(count, 0.0);
      };
      assign(a_o, rows * width), assign(a_l, rows), assign(a_v, keys * width), assign(a_q, rows * head), assign(a_k, keys * head);
      assign(a_b, rows * keys), assign(a_t, rows);
      assign(a_pivot + a_q, rows * head), assign(a_pivot + a_k, keys * head), assign(a_pivot + a_b, rows * keys), assign(a_pivot + a_t, rows);
      problem.array(a_all).assign(rows * width, 0.0);
      const double scale = std::fabs(problem.attribute[tau]);
      const double v_max = largest(problem.in[v], keys * width), go_max = largest(problem.in[go], rows * width);
      problem.scalar(s_keys, static_cast<double>(keys));
      problem.scalar(s_rows, static_cast<double>(rows));
      problem.scalar(s_head_size, static_cast<double>(head));
      problem.scalar(s_value_size, static_cast<double>(width));
      problem.scalar(s_a_max, 0);
      problem.scalar(s_gap_max, 0);
      problem.scalar(s_v_max, v_max);
      problem.scalar(s_tau_q, scale * largest(problem.in[q], rows * head));
      problem.scalar(s_tau_k, scale * largest(problem.in[k], keys * head));
      problem.scalar(s_product_max, 0);
      problem.scalar(s_pull_max, static_cast<double>(width) * v_max * go_max + 1.5 * largest(problem.in[glse], rows));
      problem.scalar(s_go_max, go_max);
      problem.scalar(s_capped, problem.attribute[softcap] > 0);
      problem.scalar(s_base, problem.attribute[lse_base] != 0 ? 1.4426950408889636 : 1);
    }

    /// What entry i of the row may lose: see oracle/bounds/sdpa.json for the derivation. All sums here are of non-negative
    /// doubles; `outward` covers their rounding up to 2^20 terms.
    void add_quantities(RowProblem<N>& problem, std::size_t t) {
      constexpr double outward = 1 + 0x1p-30;
      const std::size_t n = row.size();
      const double scale = std::fabs(problem.attribute[tau]), cap = problem.attribute[softcap];
      std::vector<std::vector<double>>& arrays = problem.values->arrays;
      std::vector<double>& scalars = problem.values->scalars;
      const double* g = problem.has(go) ? problem.in[go] + t * width : nullptr;
      const double upstream = problem.has(glse) ? 1.5 * std::fabs(problem.in[glse][t]) : 0;

      std::vector<double>&size = sizes.size, &gap = sizes.gap, &weight = sizes.weight, &reach = sizes.reach, &products = sizes.product, &near = sizes.near;
      size.assign(n, 0), gap.assign(n, 0), weight.assign(n, 0), reach.assign(n, 0), products.assign(n, 0), near.assign(n, 0), sizes.live.assign(n, 1);
      for (std::size_t i = 0; i < n; ++i) {
        weight[i] = magnitude_upper(row.weight[i]);
        near[i] = magnitude_upper(row.logit[row.pivot] - row.logit[i]);
        gap[i] = near[i] + (cap > 0 ? magnitude_upper(row.logit[i]) : 0);
        if (row.key[i] == AttentionRow<N>::sink) continue;
        const std::size_t j = row.key[i];
        for (std::size_t c = 0; c < head; ++c) products[i] += std::fabs(problem.in[q][t * head + c] * problem.in[k][j * head + c]);
        size[i] = (scale * products[i] + (problem.has(bias) ? std::fabs(problem.in[bias][t * keys + j]) : 0)) * outward;
        for (std::size_t c = 0; c < width && g; ++c) reach[i] += std::fabs(g[c] * problem.in[v][j * width + c]);
      }
      double lse_size = 0, lse_gap = 0;
      for (std::size_t i = 0; i < n; ++i) {
        sizes.live[i] = gap[i] <= 800 + 0x1p-10 * (size[i] + size[row.pivot]);
        if (!sizes.live[i]) continue;
        // A rounded logit moves its distance to the pivot, too: at most 2^-6 of the sizes for every accumulator of 20 bits.
        gap[i] += 0x1p-6 * (size[i] + size[row.pivot]);
        lse_size += weight[i] * size[i];
        lse_gap += weight[i] * gap[i];
        scalars[s_a_max] = std::max(scalars[s_a_max], size[i]);
        scalars[s_gap_max] = std::max(scalars[s_gap_max], gap[i]);
        scalars[s_product_max] = std::max(scalars[s_product_max], products[i]);
      }
      arrays[a_l][t] = lse_size * outward;
      arrays[a_l + 1][t] = lse_gap * outward;
      arrays[a_l + 2][t] = (magnitude_upper(row.lse) + magnitude_upper(row.logit[row.pivot])) * outward;

      double mean_size = 0, mean_gap = 0, mean_rest = 0, mean_all = 0;
      for (std::size_t c = 0; c < width; ++c) {
        const N output(problem.out(o)[t * width + c]);
        const double centre = midpoint_hint(output), slack = magnitude_upper(output - N(centre));
        double of_size = 0, of_gap = 0, rest = 0, all = 0;
        for (std::size_t i = 0; i < n; ++i) {
          if (!sizes.live[i]) continue;
          const double entry = row.key[i] == AttentionRow<N>::sink ? 0 : problem.in[v][row.key[i] * width + c], spread = weight[i] * (std::fabs(entry - centre) + slack);
          of_size += spread * size[i];
          of_gap += spread * gap[i];
          rest += spread;
          all += weight[i] * std::fabs(entry);
        }
        arrays[a_o][t * width + c] = of_size * outward;
        arrays[a_o + 1][t * width + c] = of_gap * outward;
        arrays[a_o + 2][t * width + c] = rest * outward;
        arrays[a_all][t * width + c] = all * outward;
        if (!g) continue;
        mean_size += std::fabs(g[c]) * of_size, mean_gap += std::fabs(g[c]) * of_gap;
        mean_rest += std::fabs(g[c]) * rest, mean_all += std::fabs(g[c]) * all;
      }
      const Mean plain{mean_size, mean_gap, mean_rest + mean_all};
      Mean tail;
      // Which key a kernel takes for its pivot is open among those whose rounded logits may tie.
      double pivot_reach = 0, pivot_lead = 0;
      std::size_t ties = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (i != row.pivot && !(near[i] <= 0x1p-10 * (size[i] + size[row.pivot]))) continue;
        ++ties;
        pivot_reach = std::max(pivot_reach, reach[i]);
        pivot_lead = std::max(pivot_lead, sizes.lead[i]);
      }
      for (std::size_t i = 0; i < n; ++i) {
        if (!sizes.live[i] || i == row.pivot) continue;
        const double share = weight[i] * (ties > 1 ? 2 : 1), lead = sizes.lead[i] + pivot_lead;
        tail.size += share * (size[i] + lse_size) * lead;
        tail.gap += share * (gap[i] + lse_gap) * lead;
        tail.rest += share * (lead + reach[i] + pivot_reach);
      }
      for (std::size_t i = 0; i < n; ++i) {
        if (!sizes.live[i] || row.key[i] == AttentionRow<N>::sink) continue;
        const std::size_t j = row.key[i];
        const double own_size = size[i] + lse_size, own_gap = gap[i] + lse_gap;
        for (std::size_t c = 0; c < width && g; ++c) {
          const double given = weight[i] * std::fabs(g[c]) * outward;
          arrays[a_v][j * width + c] += given * own_size;
          arrays[a_v + 1][j * width + c] += given * own_gap;
          arrays[a_v + 2][j * width + c] += given;
        }
        add_adjoint(problem, 0, t, i, plain, own_size, own_gap, reach[i] + upstream);
        add_adjoint(problem, a_pivot, t, i, tail, own_size, own_gap, (i == row.pivot && ties == 1 ? 0 : reach[i] + pivot_reach) + upstream);
      }
    }

    /// What D, or its distance from the pivot, may lose.
    struct Mean {
      double size = 0, gap = 0, rest = 0;
    };

    /// What da of entry i may lose, and what that does to every gradient; `direct` is what go . v_j may lose.
    void add_adjoint(RowProblem<N>& problem, std::size_t form, std::size_t t, std::size_t i, const Mean& mean, double own_size, double own_gap, double direct) {
      constexpr double outward = 1 + 0x1p-30;
      const double scale = std::fabs(problem.attribute[tau]), cap = problem.attribute[softcap];
      const double weight = sizes.weight[i], pull = magnitude_upper(row.pull[i]), bend = cap > 0 ? pull * sizes.size[i] / cap : 0;
      const std::size_t j = row.key[i];
      const double da[] = {weight * (own_size * pull + mean.size + bend) * outward, weight * (own_gap * pull + mean.gap) * outward,
                           weight * (pull + mean.rest + direct) * outward};
      std::vector<double>* arrays = problem.values->arrays.data() + form;
      for (std::size_t part = 0; part < 3; ++part) {
        arrays[a_b + part][t * keys + j] = da[part];
        arrays[a_t + part][t] += (da[part] + (part == 0 ? weight * pull : 0)) * sizes.product[i] * outward;
        double *of_query = arrays[a_q + part].data() + t * head, *of_key = arrays[a_k + part].data() + j * head;
        const double scaled = scale * da[part] * outward;
        for (std::size_t c = 0; c < head; ++c) {
          of_query[c] += scaled * std::fabs(problem.in[k][j * head + c]);
          of_key[c] += scaled * std::fabs(problem.in[q][t * head + c]);
        }
      }
    }
  };
};

SUMZERO_OPERATOR(Sdpa)

}  // namespace sumzero
