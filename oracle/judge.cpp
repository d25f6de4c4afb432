#include "oracle/judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "oracle/ulp.hpp"
#include "reference/number/working_precision.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double known_fraction = 0x1p-10;  // of an ulp, or of the smallest subnormal
constexpr int escalation_bits[] = {128, 256, 512, 1024, 2048};
constexpr int enclosure_bits[] = {96, 192, 384, 768, 1536, 3072, 6144, 12288, 16384};

double radius_upper(const Ball& a) { return a.rad; }

/// Sum of doubles with an error far below any index that is reported: two-sum into a pair.
struct PairSum {
  double high = 0, low = 0;
  void add(double x) {
    const double sum = high + x, part = sum - high;
    low += (high - (sum - part)) + (x - part);
    high = sum;
  }
  double value() const { return high + low; }
};

/// What one pass over the entries of a row found.
struct Scan {
  double ulp = -1, ratio = -1, signed_sum = 0, total = 0, bound_total = 0;
  std::int64_t ulp_index = 0, ratio_index = 0;
  std::int64_t special = -1, overflow = -1, exceeded = -1, nonzero = -1;  // first offending entry, or -1
  double exceeded_ratio = 0;
  PairSum sum;
  bool known = true, all_finite = true, any_value = false;
  bool screened = false;   // an ordinary row, whose records have no place yet
  bool all_tiny = true;    // certainly zero, as far as the format can tell
  bool maybe_zero = true;  // every entry's enclosure contains zero, or what the format cannot tell from it
};

/// An entry that is not a finite number on both sides.
template <class N>
void scan_special(Format format, double computed, const N& exact, std::int64_t j, Scan& scan) {
  scan.all_finite = false;
  if (is_special(exact)) {
    const double wanted = midpoint_hint(exact);
    const bool matches = std::isnan(wanted) ? std::isnan(computed) : computed == round_to(format, wanted);
    if (!matches && scan.special < 0) scan.special = j;
    return;
  }
  if (!(radius_upper(exact) < infinity)) {
    scan.known = false;
  } else if (std::isnan(computed)) {
    if (scan.special < 0) scan.special = j;
  } else if (rounds_to_infinity(format, magnitude_lower(exact)) && (midpoint_hint(exact) > 0) == (computed > 0)) {
    scan.any_value = true;  // the correctly rounded result
  } else if (rounds_to_infinity(format, magnitude_upper(exact))) {
    scan.known = false;
  } else if (scan.overflow < 0) {
    scan.overflow = j;
  }
}

/// Entry by entry; `bound` already contains the store. An entry is known when its verdict is certain: the error is
/// certainly within the bound or certainly above it, or the exact value is known to 2^-10 ulp. Records use the certified
/// lower end of the error.
template <class N>
void scan_entry(Format format, double computed, const N& exact, double bound, std::int64_t j, double subnormal, Scan& scan) {
  if (is_special(exact) || !std::isfinite(computed)) return scan_special(format, computed, exact, j, scan);
  const double factor = magnification(format, magnitude_upper(exact));
  const N lifted = factor == 1 ? exact : exact * N(factor);
  const double high = magnitude_upper(lifted), spacing = factor * gap(format, magnitude_upper(exact));
  const bool tiny = high <= known_fraction * (factor * subnormal);
  const N difference = factor == 1 ? N(computed) - exact : N(computed) * N(factor) - lifted;
  const double error_low = magnitude_lower(difference), error_high = magnitude_upper(difference);
  const double allowed = factor * bound;
  if (!(error_high < infinity)) scan.known = false;
  const double ulp = error_low / spacing;
  if (ulp > scan.ulp) scan.ulp = ulp, scan.ulp_index = j;
  const double ratio = error_low == 0 ? 0 : error_low / allowed;
  if (ratio > scan.ratio) scan.ratio = ratio, scan.ratio_index = j;
  if (error_low > allowed) {
    if (ratio > scan.exceeded_ratio) scan.exceeded_ratio = ratio, scan.exceeded = j;
  } else if (error_high > allowed && !tiny &&
             !(radius_upper(lifted) <= known_fraction * (factor * gap(format, magnitude_lower(exact))))) {
    scan.known = false;
  }
  scan.signed_sum += midpoint_hint(difference) / spacing;
  scan.total += magnitude_upper(exact);
  scan.bound_total += bound;
  scan.sum.add(computed);
  scan.any_value = scan.any_value || high > 0;
  scan.all_tiny = scan.all_tiny && tiny;
  scan.maybe_zero = scan.maybe_zero && magnitude_lower(lifted) <= known_fraction * (factor * subnormal);
  if (computed != 0 && scan.nonzero < 0) scan.nonzero = j;
}

// These vectors never cross a translation unit.
#pragma GCC diagnostic ignored "-Wpsabi"
Lanes absolute(const Lanes& x) { return x < 0 ? -x : x; }
Lanes larger(const Lanes& a, const Lanes& b) { return a > b ? a : b; }

/// The gap at a magnitude is a power of two read off its exponent, and so is the inverse of the gap.
struct Spacing {
  double precision, subnormal;
  explicit Spacing(Format format)
      : precision(power_of_two(1 - traits(format).precision)), subnormal(is_floating(format) ? smallest_subnormal(format) : 1.0) {}
  Lanes inverse_at(const Lanes& size) const {
    const Lanes binade = (Lanes)((LaneMask)size & 0x7ff0000000000000) * precision;
    return (Lanes)(0x7fe0000000000000 - (LaneMask)larger(binade, Lanes{} + subnormal));
  }
};

/// Four entries of a row, zeros behind its end.
struct RowLanes {
  Lanes computed, mid, rad, bound;
  RowLanes(const std::vector<double>& x, const BallArray& exact, const std::vector<double>& bounds, std::size_t j) {
    const std::size_t bytes = std::min(lane_count, exact.size() - j) * sizeof(double);
    const auto take = [&](const double* from, Lanes& to) {
      to = Lanes{};
      if (bytes == sizeof(Lanes)) load(from + j, to);
      else std::memcpy(&to, from + j, bytes);
    };
    take(x.data(), computed), take(exact.mid(), mid), take(exact.rad(), rad), take(bounds.data(), bound);
  }
  Lanes size() const { return absolute(mid) + rad; }
  Lanes error_low() const { return (absolute(computed - mid) - rad) * (1 - 0x1p-50); }
};

/// The same for an ordinary row: finite numbers, every error certainly within its bound, not all zero. Returns false for
/// any other row. Finds the size of records, not their places.
bool screen_row(Format format, const std::vector<double>& computed, const BallArray& exact, const std::vector<double>& bounds,
                Scan& scan) {
  const Spacing spacing(format);
  const double beyond = saturates(format) ? largest_finite(format) : infinity;
  Lanes ulp{}, ratio{}, signed_sum{}, total{}, bound_total{}, high{}, low{};
  LaneMask ordinary = LaneMask{} - 1, values{}, sizable{}, certain{}, nonzero{};
  for (std::size_t j = 0; j < exact.size(); j += lane_count) {
    const RowLanes row(computed, exact, bounds, j);
    const Lanes difference = row.computed - row.mid, size = row.size(), inverse = spacing.inverse_at(size);
    const Lanes error_high = (absolute(difference) + row.rad) * (1 + 0x1p-50), error_low = row.error_low();
    ordinary &= (error_high <= row.bound) & (error_high < infinity) & (size + row.bound < beyond);
    ulp = larger(error_low * inverse, ulp);
    const Lanes share = error_low / row.bound;
    ratio = error_low > 0 ? larger(share, ratio) : ratio;
    signed_sum += difference * inverse;
    total += size;
    bound_total += row.bound;
    const Lanes sum = high + row.computed, part = sum - high;
    low += (high - (sum - part)) + (row.computed - part);
    high = sum;
    values |= row.mid != 0;
    sizable |= size > known_fraction * spacing.subnormal;
    certain |= absolute(row.mid) > row.rad + known_fraction * spacing.subnormal;
    nonzero |= row.computed != 0;
  }
  const auto any = [](const LaneMask& mask) {
    std::int64_t joint = 0;
    for (std::size_t lane = 0; lane < lane_count; ++lane) joint |= mask[lane];
    return joint != 0;
  };
  if (any(~ordinary)) return false;
  scan.any_value = any(values);
  scan.all_tiny = !any(sizable);
  scan.maybe_zero = !any(certain);
  if ((scan.maybe_zero || scan.all_tiny) && any(nonzero)) return false;
  scan.screened = true;
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    scan.ulp = std::max(scan.ulp, ulp[lane]);
    scan.ratio = std::max(scan.ratio, ratio[lane]);
    scan.signed_sum += signed_sum[lane];
    scan.total += total[lane];
    scan.bound_total += bound_total[lane];
    scan.sum.add(high[lane]);
    scan.sum.add(low[lane]);
  }
  return true;
}

/// Where the records of a screened row lie.
void place_records(Format format, const std::vector<double>& computed, const BallArray& exact,
                   const std::vector<double>& bounds, Scan& scan) {
  const Spacing spacing(format);
  scan.ulp_index = scan.ratio_index = -1;
  for (std::size_t j = 0; j < exact.size(); j += lane_count) {
    const RowLanes row(computed, exact, bounds, j);
    const Lanes error_low = row.error_low(), ulp = error_low * spacing.inverse_at(row.size()), ratio = error_low / row.bound;
    for (std::size_t lane = 0; lane < std::min(lane_count, exact.size() - j); ++lane) {
      const auto index = static_cast<std::int64_t>(j + lane);
      if (scan.ulp_index < 0 && std::max(0.0, ulp[lane]) == scan.ulp) scan.ulp_index = index;
      if (scan.ratio_index < 0 && (error_low[lane] > 0 ? ratio[lane] : 0) == scan.ratio) scan.ratio_index = index;
    }
  }
}

template <class N>
Scan scan_row(Format format, const std::vector<double>& computed, const Array<N>& exact, const std::vector<double>& bounds) {
  Scan scan;
  if constexpr (std::is_same_v<N, Ball>) {
    bool ordinary = false;
    on_widest_vectors([&] { ordinary = screen_row(format, computed, exact, bounds, scan); });
    if (ordinary) return scan;
    scan = Scan();
  }
  Array<N> targets;
  if (saturates(format)) {
    targets = exact;
    for (std::size_t j = 0; j < exact.size(); ++j) {
      targets[j] = attainable<N>(format, exact[j]);
      // Sums survive saturation as little as an overflow.
      scan.all_finite = scan.all_finite && magnitude_upper(exact[j]) + bounds[j] < largest_finite(format);
    }
  }
  const Array<N>& target = saturates(format) ? targets : exact;
  const double subnormal = is_floating(format) ? smallest_subnormal(format) : 1.0;
  for (std::size_t j = 0; j < exact.size(); ++j)
    scan_entry<N>(format, computed[j], target[j], bounds[j], static_cast<std::int64_t>(j), subnormal, scan);
  return scan;
}

template <class N>
void magnitudes(const std::vector<N>& values, std::vector<double>& upper) {
  upper.resize(values.size());
  for (std::size_t j = 0; j < values.size(); ++j) upper[j] = is_special(values[j]) ? 0.0 : magnitude_upper(values[j]);
}
void magnitudes(const BallArray& values, std::vector<double>& upper) {
  upper.resize(values.size());
  const double *mid = values.mid(), *rad = values.rad();
  double* to = upper.data();
  on_widest_vectors([&] {
    each(values.size(), [&](std::size_t j) {
      const double size = (std::fabs(mid[j]) + rad[j]) * Ball::outward;
      to[j] = size < infinity || rad[j] != 0 ? size : 0;  // 0 for the special constants
    });
  });
}

void load_output(const Tensor& tensor, Shape shape, const Case& input, std::int64_t row, std::vector<double>& values) {
  values.resize(static_cast<std::size_t>(part_elements(shape, input)));
  load_part(part_of(tensor, shape, input, row), tensor.format, values.data());
}

/// One sum over the classes or keys of an output.
struct SumScan {
  double sum = 0, total = 0, bound = 0;
  bool all_zero = true;  ///< as far as the format can tell
};
template <class N>
SumScan scan_sum(const Sums& sums, std::int64_t which, const std::vector<double>& computed, const Array<N>& exact,
                 const std::vector<double>& bounds, double subnormal) {
  SumScan scan;
  PairSum sum;
  for (std::int64_t i = 0; i < sums.length; ++i) {
    const auto j = static_cast<std::size_t>(which * sums.step_sum + i * sums.step);
    sum.add(computed[j]);
    scan.total += magnitude_upper(N(exact[j]));
    scan.bound += bounds[j];
    scan.all_zero = scan.all_zero && magnitude_upper(N(exact[j])) <= known_fraction * subnormal;
  }
  scan.sum = sum.value();
  return scan;
}

void take_maximum(double value, int output, std::int64_t row, std::int64_t sum, IndexedMaximum& maximum) {
  if (value > maximum.value) maximum = {value, output, row, sum};
}

/// V of a row: |sum| over what correct rounding of every entry could leave.
double gradient_sum_index_of(Format format, double sum, double total, std::size_t n) {
  return std::fabs(sum) / (unit_roundoff(format) * total + 0.5 * (static_cast<double>(n) * smallest_subnormal(format)));
}
double sum_index_of(Format format, double sum, std::size_t n) {
  return std::fabs(sum - 1) / (unit_roundoff(format) + 0.5 * (static_cast<double>(n) * smallest_subnormal(format)));
}

bool reducing(const CaseEvaluator& evaluator, const OutputSpec& spec) {
  return spec.shape == Shape::reduced && evaluator.reduction() != Reduction::none;
}

/// Reduced loss: sum of the rows over the denominator, or a special constant.
template <class N>
class Total {
 public:
  void add(const N& loss) {
    if (is_special(loss)) special_ = special_ + midpoint_hint(loss);  // inf + nan = nan
    else sum_ = sum_ + loss;
  }
  N value(const CaseEvaluator& evaluator) const {
    if (evaluator.reduction() == Reduction::mean && evaluator.mean_over_nothing()) return N(evaluator.loss_over_nothing());
    if (special_ != 0) return N(special_);
    return evaluator.reduction() == Reduction::mean ? sum_ / evaluator.denominator<N>() : sum_;
  }

 private:
  N sum_{0.0};
  double special_ = 0;
};

/// Fills the measurement of an entry from its exact value and bound, where they settle it.
void measure_entry(Format format, const Enclosure& exact, double bound, Measurement& result) {
  result.bound = bound;
  result.exact_value = midpoint_hint(exact);
  if (is_special(exact)) {
    result.decided = true;
    result.exact = decimal(exact, 17);
    const bool matches = std::isnan(result.exact_value) ? std::isnan(result.computed)
                                                        : result.computed == round_to(format, result.exact_value);
    result.ulp = result.grid = result.bound_ratio = matches ? 0 : infinity;
    return;
  }
  const double subnormal = is_floating(format) ? smallest_subnormal(format) : 1.0;
  const double high = magnitude_upper(exact), factor = magnification(format, high);
  const double spacing = factor * gap(format, magnitude_lower(exact));
  const Enclosure lifted = exact * Enclosure(factor);
  result.decided = magnitude_upper(lifted) <= known_fraction * (factor * subnormal) || radius_upper(lifted) <= known_fraction * spacing;
  if (!result.decided) return;
  result.exact_zero = is_exact_zero(exact);
  result.exact = decimal(exact, 21);
  if (std::isnan(result.computed)) {
    result.ulp = result.grid = result.bound_ratio = infinity;
    return;
  }
  const UlpError error = ulp_error(format, result.computed, exact);
  result.ulp = 0.5 * (error.lower + error.upper);
  result.grid = grid_distance(format, result.computed, result.exact_value);
  if (std::isinf(result.computed)) {
    result.bound_ratio = rounds_to_infinity(format, high) ? 0 : infinity;
    return;
  }
  const double absolute = magnitude_upper(Enclosure(result.computed) * Enclosure(factor) - attainable(format, exact) * Enclosure(factor));
  result.bound_ratio = absolute == 0 ? 0 : absolute / (factor * result.bound);
}

}  // namespace

Judge::Judge(const OperatorReference& reference, const Kernel& kernel, Format storage)
    : reference_(reference), contract_(kernel.contract(storage)), storage_(storage) {
  const auto& outputs = signature().outputs;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    offered_[i] = kernel.offers(outputs[i].name);
    formats_[i] = element_format(outputs[i].element, storage);
    bounds_.push_back(find_bound(signature(), static_cast<int>(i), contract_, storage));
    stores_[i] = store_of(static_cast<int>(i));
  }
}
Judge::~Judge() = default;

BoundUsed Judge::bound_used(int output) const {
  const Bound& bound = bounds_[static_cast<std::size_t>(output)];
  return {bound.kind, bound.theorem, bound.file};
}

/// Bound of the stored entry: the accumulator's bound, then up to two roundings, to the row's type and to the output.
double Judge::store_bound(int output, double exact, double bound) const {
  const Format out = format_of(output), row = accumulator_of(storage_);
  if (!is_floating(out)) return bound;
  for (const Format format : {row, out}) {
    if (format != contract_.accumulator) bound = bound + unit_roundoff(format) * (exact + bound) + 0.5 * smallest_subnormal(format);
    if (out == row) break;
  }
  return bound * (1 + 0x1p-50);
}

/// store_bound is affine in bound and magnitude: two roundings (1 + v)(1 + w) - 1 of each, and a constant.
Bound::Store Judge::store_of(int output) const {
  const double at_zero = store_bound(output, 0, 0);
  const double of_bound = store_bound(output, 0, 1) - at_zero, of_exact = store_bound(output, 1, 0) - at_zero;
  constexpr double outward = 1 + 0x1p-50;  // the two differences may have lost an ulp of 1
  const Format format = format_of(output);
  return {of_bound * outward, is_floating(format) ? of_exact * outward + 0x1p-52 * of_exact : 0, at_zero,
          stored_magnitude(format, infinity)};
}

void Judge::entry_bounds(int output, std::size_t n, const std::vector<double>& scalars,
                         const std::vector<std::vector<double>>& arrays, const std::vector<double>& exact,
                         std::vector<double>& bounds, const Bound::Store& store) const {
  bounds_[static_cast<std::size_t>(output)].evaluate({n, scalars, arrays, exact}, store, bounds);
}

const std::vector<double>& Judge::sum_entries(int output, std::size_t n, const std::vector<double>& scalars,
                                              const std::vector<std::vector<double>>& arrays, const std::vector<double>& exact,
                                              const std::vector<double>& bounds, const Bound::Store& store) const {
  const Bound& bound = bounds_[static_cast<std::size_t>(output)];
  if (!bound.has_sum_entries()) return bounds;
  thread_local std::vector<double> result;
  bound.evaluate_sum_entries({n, scalars, arrays, exact}, store, result);
  return result;
}

template <class N>
bool Judge::judge_row(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, std::int64_t row, RowValues<N>& values,
                      CaseJudgement& result, bool last_tier, std::vector<double>& row_bounds) const {
  thread_local std::vector<double> computed, exact, bounds;
  std::array<Scan, max_outputs> scans;
  std::array<std::vector<SumScan>, max_outputs> sums;
  const std::size_t n = evaluator.classes();
  const auto& specs = signature().outputs;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int output = static_cast<int>(i);
    if (!offered(output)) continue;
    magnitudes(values.out[i], exact);
    const bool is_reduced = reducing(evaluator, specs[i]);
    entry_bounds(output, n, values.scalars, values.arrays, exact, bounds, is_reduced ? Bound::Store() : stores_[i]);
    if (is_reduced) {
      // The row's term, rounded to the row's type; the reduction is judged once for the case.
      const Format type = accumulator_of(storage_);
      row_bounds.push_back(bounds[0] + (type == contract_.accumulator ? 0 : unit_roundoff(type) * (exact[0] + bounds[0]) + smallest_subnormal(type)));
      continue;
    }
    load_output(outputs[i], specs[i].shape, evaluator.input(), row, computed);
    scans[i] = scan_row<N>(format_of(output), computed, values.out[i], bounds);
    if constexpr (std::is_same_v<N, Ball>)
      if (scans[i].screened && (scans[i].ulp > result.outputs[i].ulp || scans[i].ratio > result.outputs[i].ratio))
        place_records(format_of(output), computed, values.out[i], bounds, scans[i]);
    const bool open_zero = specs[i].marks & exact_zero && scans[i].maybe_zero && !scans[i].all_tiny && scans[i].nonzero >= 0;
    if ((!scans[i].known || open_zero) && !last_tier) return false;
    if (!(specs[i].marks & (zero_sum | sums_to_one)) || !scans[i].all_finite || !values.sums_hold[i]) continue;
    const Sums layout = sums_of(specs[i].shape, evaluator.input());
    if (layout.count == 1 && !bounds_[i].has_sum_entries()) {
      sums[i].push_back({scans[i].sum.value(), scans[i].total, scans[i].bound_total, scans[i].all_tiny});
    } else {
      const std::vector<double>& terms = sum_entries(output, n, values.scalars, values.arrays, exact, bounds, stores_[i]);
      for (std::int64_t s = 0; s < layout.count; ++s) sums[i].push_back(scan_sum<N>(layout, s, computed, values.out[i], terms, smallest_subnormal(format_of(output))));
    }
    if (!bounds_[i].has_sum_bound()) continue;
    for (SumScan& sum : sums[i]) {
      const double total = specs[i].marks & sums_to_one ? 1.0 : sum.total;
      double sharper = bounds_[i].sum_bound(n, values.scalars, total);
      sharper = store_bound(output, total, sharper) + static_cast<double>(n) * smallest_subnormal(format_of(output));
      sum.bound = std::min(sum.bound, sharper);
    }
  }

  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int output = static_cast<int>(i);
    if (!offered(output) || reducing(evaluator, specs[i])) continue;
    const Scan& scan = scans[i];
    if (!scan.known) ++result.undecided_rows;
    const Format format = format_of(output);
    const auto found = [&](const char* property, const char* kind, Verdict verdict, std::int64_t index, double excess) {
      result.findings.push_back({property, kind, verdict, output, row, index, excess});
    };
    if (!is_floating(format)) {
      // A flag is right or wrong; distances mean nothing.
      if (scan.ulp > 0 || scan.special >= 0) found("flag", "", Verdict::special_value, 0, infinity);
      continue;
    }
    OutputRecord& record = result.outputs[i];
    if (scan.ulp > record.ulp) record.ulp = scan.ulp, record.ulp_row = row, record.ulp_index = scan.ulp_index;
    if (scan.ratio > record.ratio) record.ratio = scan.ratio, record.ratio_row = row, record.ratio_index = scan.ratio_index;
    record.signed_ulp_sum += scan.signed_sum;
    record.elements += values.out[i].size();
    result.elements += values.out[i].size();
    result.vacuous = result.vacuous && !scan.any_value;
    if (scan.special >= 0) found("special values", "", Verdict::special_value, scan.special, infinity);
    if (scan.overflow >= 0) found("finite", "overflow", Verdict::bound_exceeded, scan.overflow, infinity);
    if (specs[i].marks & exact_zero && scan.all_tiny && scan.all_finite && scan.nonzero >= 0)
      found("exact zero", "cancellation", Verdict::invariant_broken, scan.nonzero, infinity);
    if (scan.exceeded >= 0) found("bound", "", Verdict::bound_exceeded, scan.exceeded, scan.exceeded_ratio);
    for (std::size_t s = 0; s < sums[i].size(); ++s) {
      const auto [sum, total, bound, exactly_zero] = sums[i][s];
      const auto which = static_cast<std::int64_t>(s);
      if (specs[i].marks & zero_sum && !exactly_zero) {
        const double v = gradient_sum_index_of(format, sum, total, n);
        take_maximum(v, output, row, which, result.gradient_sum_index);
        if (std::fabs(sum) > bound)
          found("gradient sum", v >= 0.25 / unit_roundoff(format) ? "collapse" : "", Verdict::invariant_broken, -1 - which, std::fabs(sum) / bound);
      }
      if (specs[i].marks & sums_to_one && scan.any_value) {
        take_maximum(sum_index_of(format, sum, n), output, row, which, result.sum_index);
        if (std::fabs(sum - 1) > bound) found("probability sum", "", Verdict::invariant_broken, -1 - which, std::fabs(sum - 1) / bound);
      }
    }
  }
  return true;
}

namespace {

/// Rows this short are judged many at once: alone, each would cost more in calls than in arithmetic.
constexpr std::size_t longest_short = 64;
constexpr std::int64_t rows_at_once = 128, fewest_at_once = 4;

}  // namespace

/// Consecutive rows and what the reference says of them, output by output one row behind the other.
struct Judge::RowBlock {
  struct Output {
    std::size_t per_row = 1;
    BallArray exact;
    std::vector<double> computed, magnitude, bounds;
    std::vector<double> ulp, ratio, signed_ulp;                    // of every entry
    std::vector<std::int64_t> ordinary, sizable, certain, nonzero;  // of every entry: 0 or -1
    std::vector<double> sum, total, bound_total;                   // of every row
    std::vector<char> sums_hold, all_tiny;
  };
  RowValues<Ball> values;
  std::int64_t first = 0, rows = 0;
  std::array<Output, max_outputs> outputs;
  std::vector<double> scalars;
  std::vector<std::vector<double>> arrays;
  std::vector<char> slow;  // rows that must be judged alone
};

/// Whether the block path says everything about such a case: every output a floating-point row or one number per row.
bool Judge::takes_blocks(const CaseEvaluator& evaluator) const {
  if (evaluator.rows() < fewest_at_once || evaluator.classes() > longest_short || signature().axes != Axes::rows) return false;
  for (std::size_t i = 0; i < signature().outputs.size(); ++i) {
    if (!offered(static_cast<int>(i))) continue;
    const OutputSpec& spec = signature().outputs[i];
    if (reducing(evaluator, spec) || bounds_[i].has_sum_entries() || !is_floating(formats_[i])) return false;
  }
  return true;
}

void Judge::evaluate_block(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, RowBlock& block) const {
  const auto rows = static_cast<std::size_t>(block.rows);
  const std::size_t n = evaluator.classes();
  const auto& specs = signature().outputs;
  RowValues<Ball>& values = block.values;
  values.want_quantities = true;
  block.slow.assign(rows, 0);
  block.scalars.resize(signature().quantities.size() * rows);
  block.arrays.resize(signature().arrays.size());
  for (auto& array : block.arrays) array.resize(rows * n);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    RowBlock::Output& o = block.outputs[i];
    o.per_row = static_cast<std::size_t>(part_elements(specs[i].shape, evaluator.input()));
    o.exact.resize(rows * o.per_row);
    o.sums_hold.resize(rows);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    evaluator.row(block.first + static_cast<std::int64_t>(r), values);
    for (std::size_t q = 0; q < values.scalars.size(); ++q) block.scalars[q * rows + r] = values.scalars[q];
    for (std::size_t a = 0; a < values.arrays.size(); ++a) std::copy_n(values.arrays[a].begin(), n, block.arrays[a].begin() + static_cast<std::ptrdiff_t>(r * n));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      RowBlock::Output& o = block.outputs[i];
      std::copy_n(values.out[i].mid(), o.per_row, o.exact.mid() + r * o.per_row);
      std::copy_n(values.out[i].rad(), o.per_row, o.exact.rad() + r * o.per_row);
      o.sums_hold[r] = values.sums_hold[i];
    }
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!offered(static_cast<int>(i))) continue;
    RowBlock::Output& o = block.outputs[i];
    magnitudes(o.exact, o.magnitude);
    bounds_[i].evaluate({n, block.scalars, block.arrays, o.magnitude, rows}, stores_[i], o.bounds);
    o.computed.resize(rows * o.per_row);
    for (std::size_t r = 0; r < rows; ++r)
      load_part(part_of(outputs[i], specs[i].shape, evaluator.input(), block.first + static_cast<std::int64_t>(r)), outputs[i].format,
                o.computed.data() + r * o.per_row);
  }
}

/// What screen_row does for one row, entry by entry for many. Marks the rows that are not ordinary as slow.
void Judge::screen_block(int output, RowBlock& block) const {
  const auto i = static_cast<std::size_t>(output);
  const OutputSpec& spec = signature().outputs[i];
  RowBlock::Output& o = block.outputs[i];
  const Format format = formats_[i];
  const std::size_t entries = o.computed.size(), rows = static_cast<std::size_t>(block.rows);
  const double beyond = saturates(format) ? largest_finite(format) : infinity, subnormal = smallest_subnormal(format);
  const std::uint64_t exponent_field = 0x7ff0000000000000, inverse_field = 0x7fe0000000000000;
  const double precision = power_of_two(1 - traits(format).precision);
  o.ulp.resize(entries), o.ratio.resize(entries), o.signed_ulp.resize(entries);
  o.ordinary.resize(entries), o.sizable.resize(entries), o.certain.resize(entries), o.nonzero.resize(entries);
  on_widest_vectors([&] {
    const double *computed = o.computed.data(), *mid = o.exact.mid(), *rad = o.exact.rad(), *bound = o.bounds.data();
    double *ulp = o.ulp.data(), *ratio = o.ratio.data(), *signed_ulp = o.signed_ulp.data();
    std::int64_t *ordinary = o.ordinary.data(), *sizable = o.sizable.data(), *certain = o.certain.data(), *nonzero = o.nonzero.data();
    each(entries, [&](std::size_t j) {
      const double difference = computed[j] - mid[j], size = std::fabs(mid[j]) + rad[j];
      const double error_high = (std::fabs(difference) + rad[j]) * (1 + 0x1p-50), error_low = (std::fabs(difference) - rad[j]) * (1 - 0x1p-50);
      const double binade = std::bit_cast<double>(std::bit_cast<std::uint64_t>(size) & exponent_field) * precision;
      const double inverse = std::bit_cast<double>(inverse_field - std::bit_cast<std::uint64_t>(binade > subnormal ? binade : subnormal));
      ulp[j] = error_low > 0 ? error_low * inverse : 0;
      ratio[j] = error_low > 0 ? error_low / bound[j] : 0;
      signed_ulp[j] = difference * inverse;
      ordinary[j] = -static_cast<std::int64_t>((error_high <= bound[j]) & (error_high < infinity) & (size + bound[j] < beyond));
      sizable[j] = -static_cast<std::int64_t>(size > known_fraction * subnormal);
      certain[j] = -static_cast<std::int64_t>(std::fabs(mid[j]) > rad[j] + known_fraction * subnormal);
      nonzero[j] = -static_cast<std::int64_t>(computed[j] != 0);
    });
  });
  const bool summed = spec.marks & (zero_sum | sums_to_one);
  o.sum.resize(rows), o.total.resize(rows), o.bound_total.resize(rows), o.all_tiny.resize(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    std::int64_t ordinary = -1, sizable = 0, certain = 0, nonzero = 0;
    double total = 0, bound_total = 0;
    PairSum sum;
    for (std::size_t j = r * o.per_row; j < (r + 1) * o.per_row; ++j) {
      ordinary &= o.ordinary[j], sizable |= o.sizable[j], certain |= o.certain[j], nonzero |= o.nonzero[j];
      if (!summed) continue;
      sum.add(o.computed[j]);
      total += std::fabs(o.exact.mid()[j]) + o.exact.rad()[j], bound_total += o.bounds[j];
    }
    block.slow[r] |= !ordinary || ((!certain || !sizable) && nonzero);
    o.all_tiny[r] = !sizable;
    o.sum[r] = sum.value(), o.total[r] = total, o.bound_total[r] = bound_total;
  }
  if (!summed) return;
  if (bounds_[i].has_sum_bound()) {
    thread_local std::vector<double> totals, sharper;
    totals.assign(rows, 1.0);
    if (!(spec.marks & sums_to_one)) totals = o.total;
    bounds_[i].evaluate_sums({o.per_row, block.scalars, block.arrays, totals, rows}, sharper);
    for (std::size_t r = 0; r < rows; ++r)
      o.bound_total[r] = std::min(o.bound_total[r], store_bound(output, totals[r], sharper[r]) + static_cast<double>(o.per_row) * subnormal);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    if (!o.sums_hold[r]) continue;
    const bool broken = spec.marks & sums_to_one ? std::fabs(o.sum[r] - 1) > o.bound_total[r] : std::fabs(o.sum[r]) > o.bound_total[r] && !o.all_tiny[r];
    block.slow[r] |= broken;
  }
}

void Judge::take_block(int output, const RowBlock& block, CaseJudgement& result) const {
  const auto i = static_cast<std::size_t>(output);
  const OutputSpec& spec = signature().outputs[i];
  const RowBlock::Output& o = block.outputs[i];
  OutputRecord& record = result.outputs[i];
  for (std::size_t r = 0; r < block.slow.size(); ++r) {
    if (block.slow[r]) continue;
    const std::int64_t row = block.first + static_cast<std::int64_t>(r);
    bool any_value = false;
    for (std::size_t e = 0; e < o.per_row; ++e) {
      const std::size_t j = r * o.per_row + e;
      const auto entry = static_cast<std::int64_t>(e);
      if (o.ulp[j] > record.ulp) record.ulp = o.ulp[j], record.ulp_row = row, record.ulp_index = entry;
      if (o.ratio[j] > record.ratio) record.ratio = o.ratio[j], record.ratio_row = row, record.ratio_index = entry;
      record.signed_ulp_sum += o.signed_ulp[j];
      any_value |= o.exact.mid()[j] != 0;
    }
    record.elements += o.per_row;
    result.elements += o.per_row;
    result.vacuous = result.vacuous && !any_value;
    if (!o.sums_hold[r]) continue;
    if (spec.marks & zero_sum && !o.all_tiny[r])
      take_maximum(gradient_sum_index_of(formats_[i], o.sum[r], o.total[r], o.per_row), output, row, 0, result.gradient_sum_index);
    if (spec.marks & sums_to_one && any_value) take_maximum(sum_index_of(formats_[i], o.sum[r], o.per_row), output, row, 0, result.sum_index);
  }
}

/// Judges all ordinary rows; returns the others.
std::vector<std::int64_t> Judge::judge_blocks(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, CaseJudgement& result) const {
  RowBlock& block = thread_scratch<RowBlock>();
  std::vector<std::int64_t> slow;
  for (block.first = 0; block.first < evaluator.rows(); block.first += block.rows) {
    block.rows = std::min(rows_at_once, evaluator.rows() - block.first);
    evaluate_block(evaluator, outputs, block);
    for (std::size_t i = 0; i < signature().outputs.size(); ++i)
      if (offered(static_cast<int>(i))) screen_block(static_cast<int>(i), block);
    for (std::size_t i = 0; i < signature().outputs.size(); ++i)
      if (offered(static_cast<int>(i))) take_block(static_cast<int>(i), block, result);
    for (std::int64_t r = 0; r < block.rows; ++r)
      if (block.slow[static_cast<std::size_t>(r)]) slow.push_back(block.first + r);
  }
  return slow;
}

template <class N>
bool Judge::judge_reduced(CaseEvaluator& evaluator, const Tensor& output, int index, const N& total, double total_bound,
                          CaseJudgement& result) const {
  Array<N> exact;
  exact.resize(1);
  exact[0] = total;
  std::vector<double> computed{output.get(0)}, upper;
  magnitudes(exact, upper);
  const double rows = static_cast<double>(evaluator.rows());
  // Pairwise sum of the rows in double and one division, then the store.
  double bound = total_bound * (1 + 0x1p-40) + upper[0] * (std::log2(rows) + 4) * 0x1p-53;
  const Format out = format_of(index);
  if (out != Format::f64) bound += unit_roundoff(out) * (stored_magnitude(out, upper[0]) + bound) + 0.5 * smallest_subnormal(out);
  const std::vector<double> bounds{bound};
  const Scan scan = scan_row<N>(out, computed, exact, bounds);
  if (!scan.known) return false;
  OutputRecord& record = result.outputs[static_cast<std::size_t>(index)];
  record = {scan.ulp, scan.ratio, 0, 0, 0, 0, scan.signed_sum, 1};
  ++result.elements;
  const auto found = [&](const char* property, const char* kind, Verdict verdict, double excess) {
    result.findings.push_back({property, kind, verdict, index, 0, 0, excess});
  };
  result.vacuous = result.vacuous && !scan.any_value;
  if (scan.special >= 0) found("special values", "", Verdict::special_value, infinity);
  if (scan.overflow >= 0) found("finite", "overflow", Verdict::bound_exceeded, infinity);
  if (signature().outputs[static_cast<std::size_t>(index)].marks & exact_zero && scan.all_tiny && scan.all_finite && scan.nonzero >= 0)
    found("exact zero", "cancellation", Verdict::invariant_broken, infinity);
  if (scan.exceeded >= 0) found("bound", "", Verdict::bound_exceeded, scan.exceeded_ratio);
  return true;
}

template <class N>
void Judge::judge_rows(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, CaseJudgement& result,
                       bool escalate) const {
  thread_local RowValues<N> values;
  values.want_quantities = true;
  const auto& specs = signature().outputs;
  int reduced = -1;
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (reducing(evaluator, specs[i]) && offered(static_cast<int>(i))) reduced = static_cast<int>(i);
  Total<N> total;
  std::vector<double> row_bounds;
  std::vector<std::int64_t> rows;
  if (std::is_same_v<N, Ball> && takes_blocks(evaluator)) rows = judge_blocks(evaluator, outputs, result);
  else rows.resize(static_cast<std::size_t>(evaluator.rows())), std::iota(rows.begin(), rows.end(), 0);
  for (const std::int64_t row : rows) {
    evaluator.row(row, values);
    if (reduced >= 0) total.add(values.out[static_cast<std::size_t>(reduced)][0]);
    const std::size_t bounds_before = row_bounds.size();
    if (judge_row(evaluator, outputs, row, values, result, !escalate, row_bounds)) continue;
    ++result.escalated_rows;
    bool done = false;
    std::vector<double> again;
    for (const int bits : escalation_bits) {
      const WorkingPrecision precision(bits);
      RowValues<Arb> refined;
      refined.want_quantities = true;
      evaluator.row(row, refined);
      again.clear();
      done = judge_row(evaluator, outputs, row, refined, result, false, again);
      if (done) break;
    }
    for (const int bits : {4096, 8192, 16384}) {
      if (done) break;
      const WorkingPrecision precision(bits);
      RowValues<Enclosure> refined;
      refined.want_quantities = true;
      evaluator.row(row, refined);
      again.clear();
      done = judge_row(evaluator, outputs, row, refined, result, bits == 16384, again);
    }
    row_bounds.resize(bounds_before);
    row_bounds.insert(row_bounds.end(), again.begin(), again.end());
  }
  if (reduced < 0) return;
  double bound = 0;
  for (const double row_bound : row_bounds) bound += row_bound;
  bound *= 1 + 0x1p-40;
  if (evaluator.reduction() == Reduction::mean && !evaluator.mean_over_nothing())
    bound /= magnitude_lower(evaluator.denominator<Ball>());
  const Tensor& tensor = outputs[static_cast<std::size_t>(reduced)];
  if (judge_reduced(evaluator, tensor, reduced, total.value(evaluator), bound, result)) return;
  for (const int bits : enclosure_bits) {
    const WorkingPrecision precision(bits);
    RowValues<Enclosure> refined;
    Total<Enclosure> refined_total;
    for (std::int64_t row = 0; row < evaluator.rows(); ++row) {
      evaluator.row(row, refined);
      refined_total.add(refined.out[static_cast<std::size_t>(reduced)][0]);
    }
    if (judge_reduced(evaluator, tensor, reduced, refined_total.value(evaluator), bound, result)) return;
  }
  ++result.undecided_rows;
}

CaseJudgement Judge::judge(const Case& input, const std::vector<Tensor>& outputs) const {
  CaseJudgement result;
  CaseEvaluator evaluator(reference_, input);
  if (storage_ == Format::f64) {
    const WorkingPrecision precision(128);
    judge_rows<Arb>(evaluator, outputs, result, true);
  } else {
    judge_rows<Ball>(evaluator, outputs, result, true);
  }
  return result;
}

template <class N>
void Judge::survey_rows(const Case& input, const std::vector<Tensor>& outputs, const std::function<void(const SurveyRow&)>& take) const {
  CaseEvaluator evaluator(reference_, input);
  RowValues<N> values;
  values.want_quantities = true;
  std::vector<double> computed, upper;
  SurveyRow row;
  const auto& specs = signature().outputs;
  for (row.row = 0; row.row < evaluator.rows(); ++row.row) {
    evaluator.row(row.row, values);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      row.output = static_cast<int>(i);
      row.format = format_of(row.output);
      if (!offered(row.output) || !is_floating(row.format) || reducing(evaluator, specs[i])) continue;
      magnitudes(values.out[i], upper);
      entry_bounds(row.output, evaluator.classes(), values.scalars, values.arrays, upper, row.bound, stores_[i]);
      load_output(outputs[i], specs[i].shape, input, row.row, computed);
      row.exact.resize(computed.size());
      row.ulp.resize(computed.size());
      bool finite = true;
      for (std::size_t j = 0; j < computed.size(); ++j) {
        const N exact = attainable(row.format, N(values.out[i][j]));
        const double middle = midpoint_hint(exact), step = gap(row.format, std::fabs(middle));
        row.exact[j] = middle;
        row.ulp[j] = is_special(exact) || std::isnan(computed[j]) || (std::isinf(computed[j]) && row.format == Format::f64)
                         ? std::nan("")
                         : midpoint_hint(N(stand_in(row.format, computed[j])) - exact) / step;
        row.bound[j] /= step;
        finite = finite && std::isfinite(computed[j]) && std::isfinite(middle);
      }
      row.gradient_sum_index.reset();
      if (specs[i].marks & zero_sum && finite && values.sums_hold[i]) {
        const Sums layout = sums_of(specs[i].shape, input);
        for (std::int64_t s = 0; s < layout.count; ++s) {
          const SumScan scan = scan_sum<N>(layout, s, computed, values.out[i], row.bound, smallest_subnormal(row.format));
          if (scan.all_zero) continue;
          row.gradient_sum_index = std::max(row.gradient_sum_index.value_or(0), gradient_sum_index_of(row.format, scan.sum, scan.total, evaluator.classes()));
        }
      }
      take(row);
    }
  }
}

void Judge::survey(const Case& input, const std::vector<Tensor>& outputs, const std::function<void(const SurveyRow&)>& take) const {
  if (storage_ != Format::f64) return survey_rows<Ball>(input, outputs, take);
  const WorkingPrecision precision(128);
  survey_rows<Arb>(input, outputs, take);
}

CaseJudgement Judge::judge_with_enclosure(const Case& input, const std::vector<Tensor>& outputs, int bits) const {
  CaseJudgement result;
  CaseEvaluator evaluator(reference_, input);
  const WorkingPrecision precision(bits);
  judge_rows<Enclosure>(evaluator, outputs, result, false);
  return result;
}

Measurement Judge::measure(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row,
                           std::int64_t index) const {
  return measure_entries(input, outputs, output, row, {index})[0];
}

std::vector<Measurement> Judge::measure_all(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row) const {
  const OutputSpec& spec = signature().outputs[static_cast<std::size_t>(output)];
  const bool reduced = reducing(CaseEvaluator(reference_, input), spec);
  std::vector<std::int64_t> indices(reduced ? 1 : static_cast<std::size_t>(part_elements(spec.shape, input)));
  std::iota(indices.begin(), indices.end(), 0);
  return measure_entries(input, outputs, output, row, std::move(indices));
}

std::vector<Measurement> Judge::measure_entries(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row,
                                                std::vector<std::int64_t> indices) const {
  CaseEvaluator evaluator(reference_, input);
  const OutputSpec& spec = signature().outputs[static_cast<std::size_t>(output)];
  const Format format = format_of(output);
  const bool reduced = reducing(evaluator, spec);
  std::vector<double> computed, upper, bounds;
  if (reduced) computed = {outputs[static_cast<std::size_t>(output)].get(0)}, indices = {0};
  else load_output(outputs[static_cast<std::size_t>(output)], spec.shape, input, row, computed);
  std::vector<Measurement> results(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) results[i].computed = computed[static_cast<std::size_t>(indices[i])];
  const auto open = [&] { return std::any_of(results.begin(), results.end(), [](const Measurement& m) { return !m.decided; }); };
  for (const int bits : enclosure_bits) {
    if (!open()) break;
    const WorkingPrecision precision(bits);
    RowValues<Enclosure> values;
    values.want_quantities = true;
    Enclosure whole;
    double whole_bound = 0;
    if (reduced) {
      Total<Enclosure> total;
      for (std::int64_t r = 0; r < evaluator.rows(); ++r) {
        evaluator.row(r, values);
        total.add(values.out[static_cast<std::size_t>(output)][0]);
        magnitudes(values.out[static_cast<std::size_t>(output)], upper);
        entry_bounds(output, evaluator.classes(), values.scalars, values.arrays, upper, bounds, {});
        whole_bound += store_bound(output, upper[0], bounds[0]);
      }
      whole = total.value(evaluator);
      if (evaluator.reduction() == Reduction::mean && !evaluator.mean_over_nothing())
        whole_bound /= magnitude_lower(evaluator.denominator<Ball>());
      const double size = is_special(whole) ? 0 : magnitude_upper(whole);
      whole_bound += stored_magnitude(format, size) * unit_roundoff(format) + size * 0x1p-48 + (is_floating(format) ? smallest_subnormal(format) : 1.0);
    } else {
      evaluator.row(row, values);
      magnitudes(values.out[static_cast<std::size_t>(output)], upper);
      entry_bounds(output, evaluator.classes(), values.scalars, values.arrays, upper, bounds, {});
    }
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (results[i].decided) continue;
      const auto j = static_cast<std::size_t>(indices[i]);
      if (reduced) measure_entry(format, whole, whole_bound, results[i]);
      else measure_entry(format, values.out[static_cast<std::size_t>(output)][j], store_bound(output, stored_magnitude(format, upper[j]), bounds[j]), results[i]);
    }
  }
  return results;
}

SumMeasurement Judge::measure_sum(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row, std::int64_t sum_index) const {
  CaseEvaluator evaluator(reference_, input);
  const std::size_t i = static_cast<std::size_t>(output), n = evaluator.classes();
  const OutputSpec& spec = signature().outputs[i];
  const Format format = format_of(output);
  SumMeasurement result;
  std::vector<double> computed, upper, bounds;
  load_output(outputs[i], spec.shape, input, row, computed);
  const Sums layout = sums_of(spec.shape, input);
  const auto entry = [&](std::int64_t k) { return static_cast<std::size_t>(sum_index * layout.step_sum + k * layout.step); };
  {
    // Formats span at most 2100 binades: at this precision every partial sum is exact.
    const WorkingPrecision precision(4096);
    Enclosure sum;
    for (std::int64_t k = 0; k < layout.length; ++k) sum = sum + Enclosure(computed[entry(k)]);
    result.sum = midpoint_hint(sum);
  }
  const WorkingPrecision precision(256);
  RowValues<Enclosure> values;
  values.want_quantities = true;
  evaluator.row(row, values);
  magnitudes(values.out[i], upper);
  entry_bounds(output, n, values.scalars, values.arrays, upper, bounds, {});
  const std::vector<double>& terms = sum_entries(output, n, values.scalars, values.arrays, upper, bounds, {});
  double total = 0;
  bool all_zero = true;
  for (std::int64_t k = 0; k < layout.length; ++k) {
    const std::size_t j = entry(k);
    result.bound += store_bound(output, upper[j], terms[j]);
    total += upper[j];
    all_zero = all_zero && is_exact_zero(values.out[i][j]);
  }
  if (bounds_[i].has_sum_bound()) {
    const double scale = spec.marks & sums_to_one ? 1.0 : total;
    const double sharper = store_bound(output, scale, bounds_[i].sum_bound(n, values.scalars, scale)) +
                           static_cast<double>(n) * smallest_subnormal(format);
    result.bound = std::min(result.bound, sharper);
  }
  result.decided = true;
  if (spec.marks & sums_to_one) result.sum_index = sum_index_of(format, result.sum, n);
  else if (!all_zero) result.gradient_sum_index = gradient_sum_index_of(format, result.sum, total, n);
  return result;
}

std::optional<Violation> Judge::confirm(const Case& input, const std::vector<Tensor>& outputs, const Suspicion& finding) const {
  Violation violation;
  violation.property = finding.property;
  violation.kind = finding.kind;
  violation.verdict = finding.verdict;
  const OutputSpec& spec = signature().outputs[static_cast<std::size_t>(finding.output)];
  violation.output = spec.name;
  violation.row = finding.row;
  violation.index = finding.index;
  violation.input = input;
  if (finding.index < 0) {
    const SumMeasurement sum = measure_sum(input, outputs, finding.output, finding.row, -1 - finding.index);
    const double wanted = spec.marks & sums_to_one ? 1.0 : 0.0;
    if (!(std::fabs(sum.sum - wanted) > sum.bound)) return std::nullopt;
    violation.computed = sum.sum;
    violation.exact_value = wanted;
    violation.exact = wanted == 1 ? "1" : "0";
    violation.bound_ratio = std::fabs(sum.sum - wanted) / sum.bound;
    violation.gradient_sum_index = sum.gradient_sum_index;
    violation.message =
        wanted == 1
            ? fmt::format("{} sums to {:.17g} instead of 1, {:.3g} times the bound", sum_text(spec.name, spec.shape, input, finding.row, -1 - finding.index),
                          sum.sum, violation.bound_ratio)
            : fmt::format("{} sums to {:.6g} instead of 0: gradient-sum index {:.4g}, {:.3g} times the bound{}",
                          sum_text(spec.name, spec.shape, input, finding.row, -1 - finding.index), sum.sum, sum.gradient_sum_index.value_or(0), violation.bound_ratio,
                          finding.kind == "collapse" ? " (a component of the gradient was lost)" : "");
    return violation;
  }
  const Measurement entry = measure(input, outputs, finding.output, finding.row, finding.index);
  if (!entry.decided) return std::nullopt;
  violation.computed = entry.computed;
  violation.exact = entry.exact;
  violation.exact_value = entry.exact_value;
  violation.ulp = entry.ulp;
  violation.bound_ratio = entry.bound_ratio;
  const std::string where = place_text(spec.name, spec.shape, input, finding.row, finding.index);
  if (finding.property == "exact zero") {
    if (!entry.exact_zero || entry.computed == 0) return std::nullopt;
    violation.message = fmt::format("{} is {:.9g} where the exact value is zero", where, entry.computed);
  } else if (finding.property == "bound") {
    if (!(entry.bound_ratio > 1)) return std::nullopt;
    violation.message = fmt::format("{} is {:.9g}, exact {}: {:.4g} ulp, {:.3g} times the bound", where, entry.computed,
                                    entry.exact, entry.ulp, entry.bound_ratio);
  } else {
    if (finding.property == "finite" && entry.bound_ratio == 0) return std::nullopt;
    if (finding.property == "special values" && entry.bound_ratio <= 1 && !std::isnan(entry.computed)) return std::nullopt;
    violation.message = fmt::format("{} is {:.9g}, but the reference is {}", where, entry.computed, entry.exact);
  }
  return violation;
}

}  // namespace sumzero
