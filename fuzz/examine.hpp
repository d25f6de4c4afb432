// One case through one kernel: guarded run, judge, properties. Campaign, replay and minimiser all look through this.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "oracle/judge.hpp"
#include "oracle/kernel/guarded_run.hpp"
#include "oracle/properties.hpp"
#include "oracle/tally.hpp"

namespace sumzero {

struct Examination {
  GuardedRun run;
  CaseJudgement judgement;
  /// Suspicions of the judge and breaches of properties, in a fixed order.
  struct Item {
    Complaint complaint;
    Verdict verdict = Verdict::pass;
    Suspicion suspicion;           ///< of the judge
    std::optional<Breach> breach;  ///< of a property
    std::string detail;            ///< of the guarded run
    double excess = 0;
  };
  std::vector<Item> items;
  bool judged = false;  ///< false when the kernel refused, died or broke the memory rules
};

class Examiner {
 public:
  Examiner(const OperatorReference& reference, const Kernel& kernel, Format storage)
      : reference_(reference), kernel_(kernel), judge_(reference, kernel, storage) {}

  /// `all_properties` also runs the properties that call the kernel again.
  Examination examine(const Case& input, bool all_properties, const GuardedOptions& options = {}) const;

  /// Whether the complaint may come from a property that calls the kernel again.
  static bool needs_reruns(const Complaint& complaint);

  /// Does this case still show the complaint?
  bool shows(const Case& input, const Complaint& complaint) const;

  /// The violation behind an item, measured with the Enclosure; null when it does not stand.
  std::optional<Violation> confirm(const Case& input, const Examination& examination, const Examination::Item& item) const;

  const Judge& judge() const { return judge_; }
  const Kernel& kernel() const { return kernel_; }
  const OperatorReference& reference() const { return reference_; }
  const Signature& signature() const { return reference_.signature(); }

 private:
  const OperatorReference& reference_;
  const Kernel& kernel_;
  Judge judge_;
};

}  // namespace sumzero
