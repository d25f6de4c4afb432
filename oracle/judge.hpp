// The judge: compares what a kernel returned with the reference, row by row, and says what is wrong.
//
// Three tiers. Outputs up to f32 are filtered with Ball<double>, f64 outputs with Arb at 128 bits; a row in which a
// tier leaves a verdict open goes through Arb at rising precision and at last the Enclosure, up to 16384 bits. What is
// reported as a violation or a record is measured again with the Enclosure (`confirm`, `measure`).
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "oracle/bound.hpp"
#include "oracle/verdict.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {

/// A suspected violation, found by the filter or by an exact check.
struct Suspicion {
  std::string property, kind;
  Verdict verdict = Verdict::pass;
  int output = 0;
  std::int64_t row = 0, index = -1;  ///< entry of the row's part of the output, or -1 - s for its sum s
  double excess = 0;  ///< how bad: ratio to the bound, or +inf
};

/// Largest errors of one output over one case.
struct OutputRecord {
  double ulp = -1, ratio = -1;  ///< -1: nothing judged
  std::int64_t ulp_row = 0, ulp_index = 0, ratio_row = 0, ratio_index = 0;
  double signed_ulp_sum = 0;
  std::uint64_t elements = 0;
};

struct IndexedMaximum {
  double value = -1;
  int output = 0;
  std::int64_t row = 0, sum = 0;  ///< which of the row's sums: attention has several
};

struct CaseJudgement {
  std::vector<Suspicion> findings;
  std::array<OutputRecord, max_outputs> outputs;
  IndexedMaximum gradient_sum_index, sum_index;
  std::uint64_t elements = 0;
  std::int64_t undecided_rows = 0, escalated_rows = 0;
  bool vacuous = true;  ///< every reference output was zero or special
};

/// One entry, measured with the Enclosure.
struct Measurement {
  bool decided = false;
  bool exact_zero = false;
  double computed = 0;
  std::string exact;        ///< decimal digits
  double exact_value = 0;
  double ulp = 0, grid = 0;
  double bound = 0, bound_ratio = 0;
};

/// Measurements of a sum over the classes or keys of an output that must be zero, or one.
struct SumMeasurement {
  bool decided = false;
  double sum = 0;                          ///< exact sum of the computed row, rounded
  double bound = 0;
  std::optional<double> gradient_sum_index;  ///< null where the reference gradient is exactly zero
  std::optional<double> sum_index;
};

/// One row of one output as charts take it: midpoints of the filter, no verdict.
struct SurveyRow {
  int output = 0;
  std::int64_t row = 0;
  Format format = Format::f32;
  std::vector<double> exact, ulp, bound;             ///< of every entry; signed error and bound in ulp
  std::optional<double> gradient_sum_index;          ///< largest of the row's sums; null where there is none
};

class Judge {
 public:
  Judge(const OperatorReference& reference, const Kernel& kernel, Format storage);
  ~Judge();

  /// Judges the outputs of one call. Outputs that the kernel does not offer are skipped.
  CaseJudgement judge(const Case& input, const std::vector<Tensor>& outputs) const;

  /// Judges with the Enclosure at a fixed precision and no filter; the yardstick of the benchmark.
  CaseJudgement judge_with_enclosure(const Case& input, const std::vector<Tensor>& outputs, int bits) const;

  /// Calls `take` for every row of every floating output that the kernel offers, reduced losses aside.
  void survey(const Case& input, const std::vector<Tensor>& outputs, const std::function<void(const SurveyRow&)>& take) const;

  Measurement measure(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row,
                      std::int64_t index) const;
  /// Every entry of a row's part of an output, for the cost of one.
  std::vector<Measurement> measure_all(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row) const;
  SumMeasurement measure_sum(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row, std::int64_t sum = 0) const;

  /// Repeats a finding with the Enclosure; null when it does not stand.
  std::optional<Violation> confirm(const Case& input, const std::vector<Tensor>& outputs, const Suspicion& finding) const;

  BoundUsed bound_used(int output) const;
  const Signature& signature() const { return reference_.signature(); }
  const Contract& contract() const { return contract_; }

 private:
  template <class N>
  void judge_rows(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, CaseJudgement& result, bool escalate) const;
  template <class N>
  bool judge_row(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, std::int64_t row, RowValues<N>& values,
                 CaseJudgement& result, bool last_tier, std::vector<double>& row_bounds) const;
  template <class N>
  void survey_rows(const Case& input, const std::vector<Tensor>& outputs, const std::function<void(const SurveyRow&)>& take) const;
  struct RowBlock;
  bool takes_blocks(const CaseEvaluator& evaluator) const;
  std::vector<std::int64_t> judge_blocks(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, CaseJudgement& result) const;
  void evaluate_block(CaseEvaluator& evaluator, const std::vector<Tensor>& outputs, RowBlock& block) const;
  void screen_block(int output, RowBlock& block) const;
  void take_block(int output, const RowBlock& block, CaseJudgement& result) const;
  template <class N>
  bool judge_reduced(CaseEvaluator& evaluator, const Tensor& output, int index, const N& total, double total_bound,
                     CaseJudgement& result) const;
  void entry_bounds(int output, std::size_t n, const std::vector<double>& scalars,
                    const std::vector<std::vector<double>>& arrays, const std::vector<double>& exact,
                    std::vector<double>& bounds, const Bound::Store& store) const;
  /// Bounds that the sums over an output's entries are judged by; `bounds` when they are the same.
  const std::vector<double>& sum_entries(int output, std::size_t n, const std::vector<double>& scalars,
                                         const std::vector<std::vector<double>>& arrays, const std::vector<double>& exact,
                                         const std::vector<double>& bounds, const Bound::Store& store) const;
  std::vector<Measurement> measure_entries(const Case& input, const std::vector<Tensor>& outputs, int output, std::int64_t row,
                                           std::vector<std::int64_t> indices) const;
  bool offered(int output) const { return offered_[static_cast<std::size_t>(output)]; }
  Format format_of(int output) const { return formats_[static_cast<std::size_t>(output)]; }
  Bound::Store store_of(int output) const;
  double store_bound(int output, double exact, double bound) const;

  const OperatorReference& reference_;
  Contract contract_;
  Format storage_;
  std::array<bool, max_outputs> offered_{};
  std::array<Format, max_outputs> formats_{};
  std::vector<Bound> bounds_;
  std::array<Bound::Store, max_outputs> stores_;
};

}  // namespace sumzero
