// Elementary functions, subnormal numbers, shift, division and stores: what single entries of short rows say.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "oracle/probe_rows.hpp"
#include "oracle/ulp.hpp"

namespace sumzero {
namespace {

/// Next hundredth above: a draft figure is never below what was seen.
double rounded_up(double error) { return std::ceil(error * 100) / 100; }

/// The format whose roundoff the errors are counted in.
Format arithmetic(const ProbeState& state) { return state.accumulator.value_or(state.rows.accumulator()); }

/// Outputs narrower than the arithmetic hide its roundings.
void require_visible(const ProbeState& state, Format output) {
  if (unit_roundoff(output) > unit_roundoff(arithmetic(state)))
    throw NotMeasurable(fmt::format("outputs in {} hide the roundings of {}", name(output), name(arithmetic(state))));
}

Format exponential_format(const ProbeRows& rows) {
  const int output = rows.exponential_view().output;
  if (output < 0) rows.observed_exponentials({{0, -1}});  // throws with the reason
  return element_format(rows.signature().outputs[static_cast<std::size_t>(output)].element, rows.storage());
}
std::string exponential_source(const ProbeRows& rows) {
  const ExponentialView& view = rows.exponential_view();
  return rows.signature().outputs[static_cast<std::size_t>(view.output)].name + (view.gradient ? " (the backward's exponential)" : "");
}

/// A tail that the maximum's 1 has absorbed shows no exponential.
void require_exponential(const ProbeState& state) {
  const ProbeRows& rows = state.rows;
  exponential_format(rows);
  if (rows.exponential_view().entry == 0 && !state.result.value("maximum in the sum").starts_with("excluded"))
    throw NotMeasurable("r is a sum with the maximum's 1 in it, less 1: its rounding hides the exponential");
}

/// Logit of an exponential that 1 absorbs.
double absorbed_logit(const ProbeState& state) { return state.rows.accumulator() == Format::f64 ? -40 : -20; }

double random_logit(std::mt19937_64& random, Format storage, double low, double high) {
  return round_to(storage, std::uniform_real_distribution<double>(low, high)(random));
}

/// Two predictions of one number; votes where they differ.
struct Vote {
  int first = 0, second = 0, neither = 0;
  void cast(double seen, double a, double b) {
    if (a == b || std::isnan(seen)) return;
    (seen == a ? first : seen == b ? second : neither) += 1;
  }
  int total() const { return first + second + neither; }
  bool for_first() const { return total() >= 10 && first * 20 >= total() * 19; }
  bool for_second() const { return total() >= 10 && second * 20 >= total() * 19; }
};

}  // namespace

void probe_logarithm(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  const SumView view = rows.sum_view();
  if (view == SumView::reciprocal || view == SumView::tail) throw NotMeasurable("this operator takes no logarithm");
  rows.observed_sums({{0, 0}});
  const Format out = rows.sum_format();
  const double u = unit_roundoff(rows.accumulator());
  double worst = 0;
  std::size_t worst_n = 2;
  // n ones sum to n in every order and in every accumulator of at least 8 bits.
  for (std::size_t n = 1; n <= 64; ++n) {
    const double seen = rows.observed_sums({Logits(n, 0.0)})[0], exact = rows.shown(static_cast<long double>(n) - 1);
    const double error = std::fabs(seen - exact);
    state.log_slack = std::max(state.log_slack, std::min(error - gap(out, std::fabs(exact)) / 2, 64 * u));
    if (n > 1 && error / std::fabs(exact) > worst) worst = error / std::fabs(exact), worst_n = n;
  }
  require_visible(state, out);
  // Near 1 the sum itself is rounded: only what goes beyond that is the logarithm's.
  std::vector<Logits> pairs;
  for (double x = -1; x >= -14; x -= 0.25) pairs.push_back({0, x});
  const std::vector<double> seen = rows.observed_sums(pairs);
  double near_one = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double exact = rows.shown(std::exp(static_cast<long double>(pairs[i][1])));
    near_one = std::max(near_one, (std::fabs(seen[i] - exact) - 2 * u) / std::fabs(exact));
  }
  std::string evidence = fmt::format("rows of 1 to 64 equal terms, largest error at n = {}", worst_n);
  if (near_one / u > 2) evidence += fmt::format("; near 1 up to {:.3g} u more than the sum's rounding explains", near_one / u);
  state.found("log error", fmt::format("{:.2f} u", rounded_up(std::max(worst, near_one) / u)), evidence);
  state.result.contract.log_error = std::min(1e6, std::max(1.0, rounded_up(std::max(worst, near_one) / u)));
}

void probe_exponential(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  require_exponential(state);
  const Format out = exponential_format(rows);
  require_visible(state, out);
  const double u = unit_roundoff(arithmetic(state));
  std::mt19937_64 random(rows.seed() + 1);
  const double lowest = std::log(smallest_normal(out)) + 1;
  // Far below 1 the term is absorbed and the sum is exactly 1: the entry is the exponential itself.
  const auto largest_error = [&](double low, double high, bool divided) {
    std::vector<Logits> pairs;
    for (int i = 0; i < 4000; ++i) pairs.push_back({0, random_logit(random, rows.storage(), low, high)});
    const std::vector<double> seen = rows.observed_exponentials(pairs);
    double worst = 0, at = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const long double e = std::exp(static_cast<long double>(pairs[i][1]));
      const double error = static_cast<double>(std::fabs(seen[i] / (divided ? e / (1 + e) : e) - 1)) / u;
      if (!(error <= worst)) worst = error, at = pairs[i][1];
    }
    return std::pair(worst, at);
  };
  const double absorbed = std::max(absorbed_logit(state), lowest + 1);
  auto [error, at] = largest_error(lowest, absorbed, !(absorbed_logit(state) > lowest + 1));
  std::string evidence = fmt::format("4000 rows {{0, x}}, x from {:.4g} to {:.4g}, read from {}; largest at x = {:.9g}", lowest, absorbed, exponential_source(rows), at);
  if (rows.exponential_view().entry > 0 && !rows.exponential_view().gradient) {
    const auto [whole, place] = largest_error(absorbed, 0, true);
    evidence += fmt::format("; with sum and division {:.2f} u for x above", whole);
    // At most 4 roundings are not the exponential's.
    if (whole - 4 > error) error = whole - 4, at = place;
  }
  state.found("exp error", fmt::format("{:.2f} u", rounded_up(error)), evidence);
  state.result.contract.exp_error = std::min(1e6, std::max(1.0, rounded_up(error)));
}

void probe_subnormals(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  try {
    require_exponential(state);
    const Format out = exponential_format(rows);
    const double normal = std::log(smallest_normal(out)), subnormal = std::log(smallest_subnormal(out));
    std::vector<Logits> pairs;
    for (double x = normal + 3; x > subnormal - 3; x -= 0.0625)
      if (const double logit = round_to(rows.storage(), x); pairs.empty() || logit != pairs.back()[1]) pairs.push_back({0, logit});
    const std::vector<double> seen = rows.observed_exponentials(pairs);
    int kept = 0, zeros = 0;
    std::optional<double> first_zero;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const double exact = std::exp(pairs[i][1]) / (1 + std::exp(pairs[i][1]));
      if (seen[i] == 0 && !first_zero) first_zero = pairs[i][1];
      if (exact < 2 * smallest_subnormal(out) || exact >= smallest_normal(out) * 0.99) continue;
      (seen[i] == 0 ? zeros : kept) += 1;
    }
    const std::string where = fmt::format("{} rows {{0, x}} whose exponential is subnormal in {}, read from {}", kept + zeros, name(out), exponential_source(rows));
    state.found("subnormal results", zeros == 0 ? "kept" : kept == 0 ? "flushed to zero" : "partly zero", fmt::format("{}: {} came out as 0", where, zeros));
    state.found("exp is 0 from", first_zero ? fmt::format("x = {:g}", *first_zero) : "", first_zero ? "first zero of that scan" : "no zero in that scan");
    state.result.contract.flush_to_zero = zeros > 0;
  } catch (const NotMeasurable& reason) {
    state.found("subnormal results", "", reason.what());
    state.found("exp is 0 from", "", reason.what());
  }
  const Signature& s = rows.signature();
  const double small = smallest_normal(rows.storage()) / 2;
  if (rows.sum_view() == SumView::log && s.output("lse") >= 0) {
    const double seen = rows.run(rows.rows({{small}}))[static_cast<std::size_t>(s.output("lse"))].get(0);
    state.found("subnormal inputs", seen == small ? "kept" : seen == 0 ? "zero" : "changed", "a row of one subnormal logit, whose lse is itself");
    return;
  }
  const int gx = s.output("gx"), upstream = s.input_with(Role::upstream);
  if (gx < 0 || upstream < 0 || !rows.kernel().offers("gx")) throw NotMeasurable("a subnormal logit has exponential 1, and no gradient is offered");
  Case input = rows.rows({{0, 0}});
  Tensor& g = input.inputs.at(s.inputs[static_cast<std::size_t>(upstream)].name);
  for (std::int64_t i = 0; i < g.elements(); ++i) g.set(i, g.get(i) * small);
  const Tensor gradient = rows.run(input)[static_cast<std::size_t>(gx)];
  const bool zero = gradient.get(0) == 0 && gradient.get(1) == 0;
  state.found("subnormal inputs", zero ? "zero" : "kept", "a subnormal upstream gradient of a row {0, 0}, whose gx is a half or a quarter of it");
}

void probe_shift(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  require_exponential(state);
  const Format out = exponential_format(rows), work = arithmetic(state);
  require_visible(state, out);
  if (unit_roundoff(work) < unit_roundoff(rows.storage()))
    throw NotMeasurable(fmt::format("the difference of two {} logits is exact in {}", name(rows.storage()), name(work)));
  std::mt19937_64 random(rows.seed() + 2);
  const double scale = std::min(1.0, -std::log(smallest_normal(out)) / 87);
  std::vector<Logits> pairs;
  for (int i = 0; i < 400; ++i) pairs.push_back({random_logit(random, rows.storage(), 8 * scale, 16 * scale), random_logit(random, rows.storage(), -64 * scale, -32 * scale)});
  const std::vector<double> seen = rows.observed_exponentials(pairs);
  int rounded = 0, exact = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const long double d = static_cast<long double>(pairs[i][1]) - pairs[i][0];
    const long double stored = work == Format::f64 ? static_cast<double>(d) : round_to(work, static_cast<double>(d));
    if (std::fabs(stored - d) < 6 * unit_roundoff(work)) continue;  // too close to tell behind the error of exp
    const auto distance = [&](long double argument) { return std::fabs(seen[i] - std::exp(argument)); };
    (distance(stored) < distance(d) ? rounded : exact) += 1;
  }
  if (rounded + exact < 10) throw NotMeasurable("too few differences round far enough");
  const std::string evidence = fmt::format("{} of {} rows {{x, y}} are nearer to exp of the rounded difference, read from {}", rounded, rounded + exact, exponential_source(rows));
  const bool is_rounded = rounded * 10 >= (rounded + exact) * 9, is_exact = exact * 10 >= (rounded + exact) * 9;
  state.found("x - max", is_rounded ? "rounded" : is_exact ? "compensated" : "unknown", evidence);
  state.result.contract.compensated_shift = is_exact;
}

void probe_division(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  if (rows.sum_view() != SumView::reciprocal) throw NotMeasurable("no output is a quotient");
  require_visible(state, rows.storage());
  const Format work = rows.storage();
  std::mt19937_64 random(rows.seed() + 3);
  const double top = absorbed_logit(state), low = std::max(2 * top, std::log(smallest_normal(work)) + 4);
  if (low >= top) throw NotMeasurable(fmt::format("{} has no normal number that 1 absorbs", name(work)));
  Vote vote;
  for (const std::size_t n : {3, 5, 6, 7, 11, 13, 23}) {
    std::vector<Logits> singles, many;
    for (int i = 0; i < 50; ++i) {
      const double x = random_logit(random, work, low, top);
      singles.push_back({0, x});
      many.push_back(Logits(n, 0.0));
      many.back().push_back(x);
    }
    // The single row has sum 1, so its entry is the exponential; n ones sum to n.
    const std::vector<double> e = rows.observed_exponentials(singles), seen = rows.observed_exponentials(many, static_cast<std::int64_t>(n));
    const double reciprocal = round_to(work, 1.0 / static_cast<double>(n));
    for (std::size_t i = 0; i < e.size(); ++i)
      vote.cast(seen[i], round_to(work, e[i] / static_cast<double>(n)), round_to(work, e[i] * reciprocal));
  }
  const std::string evidence = fmt::format("of {} entries e/n where the two differ, {} equal the quotient and {} the product", vote.total(), vote.first, vote.second);
  state.found("division", vote.for_first() ? "divides" : vote.for_second() ? "multiplies by a rounded reciprocal" : "unknown", evidence);
  state.result.contract.reciprocal = !vote.for_first();
}

void probe_stores(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  const Signature& s = rows.signature();
  const Format storage = rows.storage();
  if (unit_roundoff(arithmetic(state)) >= unit_roundoff(storage))
    throw NotMeasurable(fmt::format("{} holds what {} arithmetic computes: a store changes nothing", name(storage), name(arithmetic(state))));
  if (rows.sum_view() == SumView::none || rows.sum_view() == SumView::tail || !rows.kernel().offers("gx"))
    throw NotMeasurable("no gradient that would read a forward result is offered");
  std::mt19937_64 random(rows.seed() + 4);
  std::vector<Logits> pairs;
  for (int i = 0; i < 400; ++i) pairs.push_back({0, random_logit(random, storage, -5, -0.25)});
  const Tensor gx = rows.run(rows.rows(pairs))[static_cast<std::size_t>(s.output("gx"))];
  const auto store = [storage](double v) { return round_to(storage, v); };
  Vote vote;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double x = pairs[i][1], total = 1 + std::exp(x), p = std::exp(x) / total;
    double fresh = p, reread = std::exp(store(x - std::log(total)));
    if (rows.sum_view() == SumView::reciprocal) fresh = p / total, reread = store(p) * store(1 / total);
    if (s.output("lse") >= 0) reread = std::exp(x - store(std::log(total)));
    vote.cast(std::fabs(gx.get(static_cast<std::int64_t>(2 * i + 1))), store(fresh), store(reread));
  }
  const std::string evidence = fmt::format("of {} gradients where it matters, {} equal the unrounded forward and {} the stored one", vote.total(), vote.first, vote.second);
  // A chain of several stores equals neither prediction, but is no unrounded forward.
  const bool stored = !vote.for_first() && vote.second * 2 > vote.total();
  state.found("backward reads", vote.for_first() ? "the unrounded forward" : stored ? "the stored forward" : "unknown", evidence);
  state.result.contract.stores_intermediates = !vote.for_first();
}

}  // namespace sumzero
