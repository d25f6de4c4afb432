#include "oracle/probe_summation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>

#include "oracle/probe_rows.hpp"
#include "oracle/ulp.hpp"

namespace sumzero {
namespace {

using Kind = SummationOrder::Kind;

/// Sums with every addition rounded by `round`; a double holds the sum of two narrower numbers before its one rounding.
template <class Round>
class Adder {
 public:
  explicit Adder(Round round) : round_(round) {}

  double sum(const SummationOrder& order, std::span<const double> terms) const {
    switch (order.kind) {
      case Kind::reversed: return sequential(terms.rbegin(), terms.rend());
      case Kind::lanes: return lanes(terms, static_cast<std::size_t>(order.width), static_cast<std::size_t>(order.flush_every));
      case Kind::chunks: return chunks(terms, static_cast<std::size_t>(order.width));
      case Kind::pairwise: return pairwise(terms, static_cast<std::size_t>(order.block), static_cast<std::size_t>(order.width));
      default: return sequential(terms.begin(), terms.end());
    }
  }

 private:
  double add(double a, double b) const { return round_(a + b); }

  template <class Iterator>
  double sequential(Iterator first, Iterator last) const {
    double total = 0;
    for (; first != last; ++first) total = add(total, *first);
    return total;
  }
  double fold(std::vector<double> lanes) const {
    while (lanes.size() > 1) {
      const std::size_t half = (lanes.size() + 1) / 2;
      for (std::size_t i = 0; i + half < lanes.size(); ++i) lanes[i] = add(lanes[i], lanes[i + half]);
      lanes.resize(half);
    }
    return lanes[0];
  }
  double lanes(std::span<const double> terms, std::size_t width, std::size_t flush) const {
    const std::size_t block = flush == 0 ? terms.size() : width * flush;
    std::vector<std::pair<std::vector<double>, std::size_t>> cascade;  // accumulators, blocks in them
    const auto merge = [&] {
      std::vector<double>& older = cascade[cascade.size() - 2].first;
      for (std::size_t i = 0; i < width; ++i) older[i] = add(older[i], cascade.back().first[i]);
      cascade[cascade.size() - 2].second += cascade.back().second;
      cascade.pop_back();
    };
    for (std::size_t begin = 0; begin < terms.size(); begin += block) {
      std::vector<double> lane(width, 0.0);
      const std::size_t end = std::min(begin + block, terms.size());
      for (std::size_t i = begin; i < end; ++i) lane[(i - begin) % width] = add(lane[(i - begin) % width], terms[i]);
      cascade.emplace_back(std::move(lane), 1);
      while (cascade.size() > 1 && cascade[cascade.size() - 2].second == cascade.back().second) merge();
    }
    while (cascade.size() > 1) merge();
    return fold(std::move(cascade[0].first));
  }
  double chunks(std::span<const double> terms, std::size_t width) const {
    const std::size_t length = (terms.size() + width - 1) / width;
    std::vector<double> sums;
    for (std::size_t begin = 0; begin < terms.size(); begin += length) {
      const auto chunk = terms.subspan(begin, std::min(length, terms.size() - begin));
      sums.push_back(sequential(chunk.begin(), chunk.end()));
    }
    return fold(std::move(sums));
  }
  double pairwise(std::span<const double> terms, std::size_t block, std::size_t width) const {
    if (terms.size() <= block) return width > 1 ? lanes(terms, width, 0) : sequential(terms.begin(), terms.end());
    std::size_t half = terms.size() / 2;
    if (width > 1) half -= half % width;
    return add(pairwise(terms.first(half), block, width), pairwise(terms.subspan(half), block, width));
  }

  Round round_;
};

long double exact_sum(const std::vector<double>& terms) {
  long double total = 0, lost = 0;  // Neumaier's compensation: good to 2^-63 whatever the length
  for (const double term : terms) {
    const long double next = total + term;
    lost += std::fabs(total) >= std::fabs(static_cast<long double>(term)) ? (total - next) + term : (term - next) + total;
    total = next;
  }
  return total + lost;
}

}  // namespace

std::string SummationOrder::text() const {
  switch (kind) {
    case Kind::sequential: return "sequential";
    case Kind::reversed: return "sequential from the last";
    case Kind::lanes:
      return flush_every > 0 ? fmt::format("lanes {}, flushed every {} into a cascade", width, flush_every) : fmt::format("lanes {}", width);
    case Kind::chunks: return fmt::format("chunks {}", width);
    case Kind::pairwise:
      if (block == 1) return "pairwise";
      return width > 1 ? fmt::format("pairwise, blocks of {} in {} lanes", block, width) : fmt::format("pairwise, blocks of {}", block);
    case Kind::exact: return "exact: wider or compensated";
  }
  return "";
}

SummationTree SummationOrder::tree() const {
  switch (kind) {
    case Kind::lanes: return {SummationTree::Kind::lanes, width, flush_every};
    case Kind::chunks: return {SummationTree::Kind::lanes, width, 0};
    case Kind::pairwise:
      // A block is a flush of its lanes into the cascade of halves.
      if (block == 1) return {SummationTree::Kind::pairwise, 1, 0};
      return {SummationTree::Kind::lanes, width, (block + width - 1) / width};
    case Kind::exact: return {SummationTree::Kind::compensated, 1, 0};
    default: return {SummationTree::Kind::sequential, 1, 0};
  }
}

const std::vector<SummationOrder>& summation_orders() {
  static const std::vector<SummationOrder> all = [] {
    std::vector<SummationOrder> orders = {{Kind::sequential}, {Kind::reversed}};
    for (int width = 2; width <= 1024; width *= 2) orders.push_back({Kind::lanes, width});
    for (int width = 2; width <= 64; width *= 2) orders.push_back({Kind::chunks, width});
    for (int block = 1; block <= 512; block *= 2) orders.push_back({Kind::pairwise, 1, 0, block});
    for (const int width : {4, 8, 16})
      for (int block = 32; block <= 512; block *= 2) orders.push_back({Kind::pairwise, width, 0, block});
    for (int width = 4; width <= 64; width *= 2)
      for (int flush = 4; flush <= 128; flush *= 2) orders.push_back({Kind::lanes, width, flush});
    orders.push_back({Kind::exact});
    return orders;
  }();
  return all;
}

long double sum_in_order(const SummationOrder& order, Format accumulator, const std::vector<double>& terms) {
  if (order.kind == Kind::exact) return exact_sum(terms);
  switch (accumulator) {
    case Format::f64: return Adder([](double v) { return v; }).sum(order, terms);
    case Format::f32: return Adder([](double v) { return static_cast<double>(static_cast<float>(v)); }).sum(order, terms);
    default: return Adder([=](double v) { return round_to(accumulator, v); }).sum(order, terms);
  }
}

namespace {

/// A construction of the sum that may be the kernel's.
struct Hypothesis {
  SummationOrder order;
  Format accumulator = Format::f32;
  bool without_maximum = false;  ///< the first maximum's 1 is added after the sum of all others
  int exact_hits = 0;            ///< rows predicted to the last bit

  std::string text() const { return order.kind == Kind::exact ? order.text() : fmt::format("{} in {}", order.text(), name(accumulator)); }
};

/// Rows in which only ones, absorbed terms and zeros occur, so that the kernel's exponential does not matter: an error of
/// exp in a term that is about to be rounded away stays far below a rounding of the sum.
class OrderRows {
 public:
  OrderRows(const ProbeRows& rows, std::uint64_t seed) : rows_(rows), random_(seed) {}

  /// `count` big terms of exactly 1 at random places, the first at `first`; the rest drawn from `small`.
  Logits row(std::size_t n, const std::vector<double>& small, std::size_t count, double zeros) {
    Logits x(n);
    std::uniform_real_distribution<double> uniform;
    for (double& value : x) value = uniform(random_) < zeros ? rows_.dead() : small[random_() % small.size()];
    for (std::size_t i = 0; i < count; ++i) x[random_() % n] = 0;
    return x;
  }
  std::size_t below(std::size_t n) { return random_() % n; }

 private:
  const ProbeRows& rows_;
  std::mt19937_64 random_;
};

/// Logits whose exponential an accumulator absorbs at 1, largest first.
std::vector<double> absorbed(Format accumulator) {
  switch (accumulator) {
    case Format::f64: return {-37, -38, -40};
    case Format::f32: return {-17, -18, -20};
    case Format::f16: return {-8, -9, -10};
    default: return {-6, -6.5, -7};
  }
}

class OrderSearch {
 public:
  OrderSearch(ProbeState& state) : state_(state), rows_(state.rows), out_(rows_.sum_format()) {
    const Format native = rows_.accumulator();
    std::vector<Format> accumulators = {native};
    if (native == Format::f64) accumulators.push_back(Format::f32);
    accumulators.push_back(Format::f16);
    accumulators.push_back(Format::bf16);
    for (const bool without : {false, true})
      for (const Format accumulator : accumulators)
        for (const SummationOrder& order : summation_orders())
          if (order.kind != Kind::exact || accumulator == native) candidates_.push_back({order, accumulator, without});
    accumulators_ = accumulators;
  }

  std::vector<Hypothesis>& candidates() { return candidates_; }
  int rows_tried() const { return tried_; }

  /// Drops the candidates that do not predict the outputs of these rows.
  void filter(const std::vector<Logits>& batch) {
    const std::vector<double> seen = rows_.observed_sums(batch);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      ++tried_;
      std::erase_if(candidates_, [&](Hypothesis& h) { return !predicts(h, batch[i], seen[i]); });
    }
  }

  /// Sizes at which a loss of `fraction` of the terms that accumulator `a` absorbs shows in the output.
  std::size_t length(Format a) const {
    const double term = std::exp(absorbed(a)[0]);
    const double visible = rows_.sum_view() == SumView::reciprocal ? 8 * unit_roundoff(out_) : 64 * (state_.log_slack + unit_roundoff(a));
    const double needed = std::exp2(std::ceil(std::log2(std::max(visible / term, 1.0))));
    return static_cast<std::size_t>(std::clamp(needed, 4096.0, 0x1p22));
  }
  const std::vector<Format>& accumulators() const { return accumulators_; }

 private:
  bool predicts(Hypothesis& h, const Logits& x, double seen) const {
    std::vector<double> terms(x.size());
    for (std::size_t j = 0; j < x.size(); ++j)
      terms[j] = x[j] == 0 ? 1 : x[j] == rows_.dead() ? 0 : round_to(h.accumulator, std::exp(x[j]));
    if (h.without_maximum) terms[static_cast<std::size_t>(std::max_element(x.begin(), x.end()) - x.begin())] = 0;
    const long double sum = sum_in_order(h.order, h.accumulator, terms);
    const long double r = h.without_maximum ? sum : sum - 1;
    const double expected = rows_.shown(r);
    // One rounding of r + 1, one of the division or logarithm and the kernel's own error there, then the store.
    const double magnitude = std::fabs(expected);
    double slack = gap(out_, magnitude);
    if (h.accumulator != Format::f64 || out_ == Format::f64) slack += 3 * unit_roundoff(h.accumulator) * magnitude;
    if (rows_.sum_view() != SumView::reciprocal) slack += state_.log_slack;
    // What 1 + r, or a sum with the maximum in it, was rounded to.
    const double s = static_cast<double>(1 + r), rounded = unit_roundoff(h.accumulator) * s;
    if (rows_.sum_view() == SumView::tail) slack += h.without_maximum ? 0 : rounded;
    else if (rows_.sum_view() != SumView::reciprocal) slack += unit_roundoff(h.accumulator);
    if (seen == round_to(out_, expected)) ++h.exact_hits;
    return std::fabs(seen - expected) <= slack;
  }

  ProbeState& state_;
  const ProbeRows& rows_;
  Format out_;
  std::vector<Hypothesis> candidates_;
  std::vector<Format> accumulators_;
  int tried_ = 0;
};

/// Leaves the candidates with the most predictions to the last bit, when the outputs tell them apart that finely.
void keep_sharpest(std::vector<Hypothesis>& candidates, int rows) {
  int best = 0;
  for (const Hypothesis& h : candidates) best = std::max(best, h.exact_hits);
  if (best * 10 < rows * 9) return;
  std::erase_if(candidates, [&](const Hypothesis& h) { return h.exact_hits * 10 < best * 9; });
}

/// Rows that tell orders apart: one or two ones among absorbed terms, then many ones among terms of several sizes.
std::vector<Logits> telling_rows(OrderRows& source, Format accumulator, std::size_t n, std::size_t count) {
  const std::vector<double> small = absorbed(accumulator);
  std::vector<Logits> batch;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 3 != 2) {
      Logits x = source.row(n, {small[i % 2]}, i % 2, i % 4 < 2 ? 0 : 0.3);
      x[i < 2 ? 0 : source.below(n)] = 0;
      x[source.below(n)] = 0;
      batch.push_back(std::move(x));
    } else {
      batch.push_back(source.row(n, small, n / (std::size_t{1} << (i % 8)) + 2, 0.1));
    }
  }
  return batch;
}

std::string list_of(const std::vector<Hypothesis>& candidates) {
  std::string text;
  for (std::size_t i = 0; i < candidates.size() && i < 4; ++i) text += (i ? ", " : "") + candidates[i].text();
  return candidates.size() > 4 ? fmt::format("{} and {} more", text, candidates.size() - 4) : text;
}

/// The width of the sum as far as the remaining candidates agree on it.
void report(ProbeState& state, const std::vector<Hypothesis>& fits, const std::string& evidence) {
  const auto agree = [&](auto field) { return std::all_of(fits.begin(), fits.end(), [&](const Hypothesis& h) { return field(h) == field(fits[0]); }); };
  Contract& draft = state.result.contract;
  const bool exact = fits[0].order.kind == Kind::exact;
  if (agree([](const Hypothesis& h) { return h.order.kind == Kind::exact ? -1 : static_cast<int>(h.accumulator); })) {
    state.accumulator = fits[0].accumulator;
    draft.accumulator = fits[0].accumulator;
    state.found("accumulator", exact ? fmt::format("wider than {} or compensated", name(fits[0].accumulator)) : std::string(name(fits[0].accumulator)), evidence);
  } else {
    state.found("accumulator", "", "several widths predict the outputs: " + list_of(fits));
  }
  if (agree([](const Hypothesis& h) { return h.order.text(); })) {
    draft.summation = fits[0].order.tree();
    state.found("reduction order", fits[0].order.text(), evidence);
  } else {
    state.found("reduction order", "unknown", "several orders predict the outputs: " + list_of(fits));
  }
  if (agree([](const Hypothesis& h) { return h.without_maximum; }))
    state.found("maximum in the sum", fits[0].without_maximum ? "excluded, added last" : "included", evidence);
  else
    state.found("maximum in the sum", "", "with and without it the outputs are predicted alike");
}

/// When no order fits, the smallest second term that changes a row of two says how wide the sum is at least.
void report_unknown(ProbeState& state, const std::string& evidence) {
  state.found("reduction order", "unknown", evidence);
  const ProbeRows& rows = state.rows;
  std::string why = "no order predicts the sums";
  std::string value;
  std::vector<Logits> batch;
  for (double x = -1; x >= -40; x -= 0.5) batch.push_back({0, x});
  const std::vector<double> seen = rows.observed_sums(batch);
  double last = 0;
  for (std::size_t i = 0; i < batch.size(); ++i)
    if (seen[i] != rows.shown(0)) last = batch[i][1];
  // 1 + t changes the sum from half a gap at 1 on: t > u.
  for (const Format format : {Format::bf16, Format::f16, Format::f32, Format::f64})
    if (std::fabs(last - std::log(unit_roundoff(format))) <= 1.0 && unit_roundoff(format) >= unit_roundoff(rows.accumulator())) {
      const bool output_limits = unit_roundoff(rows.sum_format()) >= unit_roundoff(format) && rows.sum_view() == SumView::reciprocal;
      if (format != rows.accumulator() && output_limits) continue;
      value = std::string(name(format));
      why = fmt::format("a row of two: the smallest second term that changes the output is e^{:g}{}", last,
                        output_limits ? ", which a wider accumulator would show alike" : "");
      state.accumulator = format;
      state.result.contract.accumulator = format;
    }
  state.found("accumulator", value, why);
}

}  // namespace

void probe_summation(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  if (rows.sum_view() == SumView::none) rows.observed_sums({{0, 0}});  // throws with the reason
  if (traits(rows.sum_format()).bytes == 1)
    throw NotMeasurable(fmt::format("the {} significand bits of {} do not show what a sum loses", traits(rows.sum_format()).precision, name(rows.sum_format())));
  OrderSearch search(state);
  OrderRows source(rows, state.rows.seed());
  // Narrow accumulators first: their rows are short and leave few candidates for the long ones.
  std::vector<Format> widths = search.accumulators();
  std::reverse(widths.begin(), widths.end());
  std::size_t longest = 0;
  for (const Format width : widths) {
    const std::size_t n = search.length(width);
    longest = std::max(longest, n);
    const std::size_t count = n > 65536 ? 6 : 18;
    for (const Logits& x : telling_rows(source, width, n, count)) {
      if (search.candidates().empty() || !rows.time_left(0.4)) break;
      search.filter({x});
    }
  }
  const std::string rows_text = fmt::format("{} rows of up to {} terms, read from {}", search.rows_tried(), longest, rows.sum_output());
  std::vector<Hypothesis>& fits = search.candidates();
  if (fits.empty()) {
    report_unknown(state, fmt::format("none of {} orders predicts {}", summation_orders().size(), rows_text));
    return;
  }
  keep_sharpest(fits, search.rows_tried());
  // Fresh rows, odd lengths among them, decide whether the hypothesis stands.
  for (Hypothesis& h : fits) h.exact_hits = 0;
  const std::vector<Hypothesis> before = fits;
  OrderRows fresh(rows, state.rows.seed() + 0x9e3779b9);
  int confirmed = 0;
  for (const Format width : widths) {
    const std::size_t n = search.length(width);
    for (const Logits& x : telling_rows(fresh, width, n > 65536 ? n : 3 * n / 4, n > 65536 ? 2 : 12)) {
      if (fits.empty() || !rows.time_left(0.5)) break;
      search.filter({x});
      ++confirmed;
    }
  }
  // Orders that differ from some length on only.
  std::size_t longest_fresh = longest;
  for (std::size_t n = 4 * longest; fits.size() > 1 && n <= 1 << 17; n *= 4, longest_fresh = n / 4)
    for (const Logits& x : telling_rows(fresh, rows.accumulator(), n, 6)) {
      if (fits.empty() || !rows.time_left(0.5)) break;
      search.filter({x});
      ++confirmed;
    }
  if (fits.empty()) {
    report_unknown(state, fmt::format("{} fits {}, but not fresh rows", before[0].text(), rows_text));
    return;
  }
  int hits = 0;
  for (const Hypothesis& h : fits) hits = std::max(hits, h.exact_hits);
  keep_sharpest(fits, confirmed);
  report(state, fits, fmt::format("predicts {}, and {} fresh rows of up to {} ({} to the last bit)", rows_text, confirmed, longest_fresh, hits));
}

void probe_saturation(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  rows.observed_sums({{0, 0}});
  const Format out = rows.sum_format();
  // 1/n must stay a normal number of the output.
  const auto longest_row = static_cast<double>(rows.longest());
  const double limit = rows.sum_view() == SumView::reciprocal ? std::min(longest_row, 1 / smallest_normal(out)) : longest_row;
  std::size_t longest = 0;
  for (std::size_t n = 2; static_cast<double>(n) <= limit; n *= 2) {
    const auto start = std::chrono::steady_clock::now();
    const double seen = rows.observed_sums({Logits(n, 0.0)})[0];
    const double s = rows.sum_view() == SumView::reciprocal ? 1 / seen : rows.sum_view() == SumView::tail ? 1 + seen
                     : std::exp(rows.sum_view() == SumView::negative_log ? -seen : seen);
    if (!(s > 0.75 * static_cast<double>(n))) {
      const double stuck = std::exp2(std::round(std::log2(s)));
      state.found("saturation length", fmt::format("{:.0f}", stuck), fmt::format("a row of {} equal terms sums to {:.6g}", n, s));
      return;
    }
    longest = n;
    // Twice the length takes twice the time, and as much again to copy and compare.
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (seconds > rows.seconds() / 5 || !rows.time_left(0.8)) break;
  }
  state.found("saturation length", fmt::format("none up to {}", longest), "rows of 2, 4, 8, ... equal terms sum to their length");
}

}  // namespace sumzero
