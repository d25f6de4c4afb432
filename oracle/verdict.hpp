// What the oracle says: verdicts, findings, and the report of a run. Every output format is written from `Report`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/tally.hpp"
#include "reference/case.hpp"

namespace sumzero {

/// Verdict on one case.
enum class Verdict : std::uint8_t {
  pass,
  bound_exceeded,       ///< error above the proved, derived or declared bound for this very input
  invariant_broken,     ///< an exact property fails
  special_value,        ///< NaN, infinities, masked rows: documented policy broken
  out_of_bounds,        ///< wrote outside its outputs
  input_mutated,
  not_fully_written,
  not_deterministic,
  crashed,
  timed_out,
  refused,              ///< the kernel declined: outside its contract
  undecided,            ///< the reference could not certify enough digits
  mistrusted,           ///< a pass that proves nothing
};
std::string_view name(Verdict verdict);
std::optional<Verdict> verdict_named(std::string_view text);
/// The kernel died, or had to be ended.
constexpr bool kills(Verdict verdict) { return verdict == Verdict::crashed || verdict == Verdict::timed_out; }

/// Exit codes of every command. When several apply, usage wins over crash over violation over inconclusive.
enum class Exit : int { pass = 0, violation = 1, usage = 2, crash = 3, inconclusive = 4, skipped = 77 };
Exit worse(Exit a, Exit b);

/// One broken property, confirmed by the Enclosure.
struct Violation {
  std::string property;      ///< "bound", "gradient sum", "exact zero", "probability sum", "range", "ties", ...
  std::string kind;          ///< finer class where one is known, for example "collapse"; else empty
  Verdict verdict = Verdict::pass;
  std::string severity = "error";  ///< error or warning
  std::string output;        ///< name of the output
  std::int64_t row = 0;
  std::int64_t index = -1;   ///< class, or -1 when the whole row is meant
  double computed = 0;       ///< computed value of the entry (or of the sum)
  std::string exact;         ///< decimal digits of the reference, 17 significant at least
  double exact_value = 0;    ///< nearest double of the reference
  double ulp = 0;            ///< error in ulp of the output format; +inf when not a number
  double bound_ratio = 0;    ///< error over bound; 0 when no bound applies
  std::optional<double> gradient_sum_index;
  std::string message;       ///< one clear sentence
  std::string stratum;       ///< where the case came from
  std::uint64_t case_index = 0;
  std::string witness;       ///< content address (file stem) of the witness
  Case input;                ///< the minimised case
};

/// Largest error of one output.
struct Worst {
  double ulp = 0, grid = 0;
  double bound_ratio = 0;
  double computed = 0;       ///< at the largest ulp error
  std::string exact;         ///< decimal, at the largest ulp error
  std::string kind = "sampled";  ///< exhaustive or sampled
  std::string witness, bound_witness;  ///< content addresses: case of the largest ulp error, of the largest bound ratio
  std::int64_t row = 0, index = 0, classes = 0;
  std::uint64_t elements = 0;
};

/// Bound that an output was judged by.
struct BoundUsed {
  std::string kind = "derived";  ///< proved, derived or declared
  std::string theorem;           ///< for example "T4"
  std::string file;              ///< bound file
};

struct IndexRecord {
  std::optional<double> max;     ///< null when no row had one
  std::string output, witness;
};

struct Bias {
  double mean_ulp = 0;           ///< mean of the signed ulp error
  std::uint64_t elements = 0;
};

/// The one coverage class of an exhaustive run.
std::string every_row(std::uint64_t length);

/// The result of fuzz, exhaust or check for one kernel, operator and format.
struct Report {
  static constexpr int schema = 1;
  std::string op, kernel, format;
  std::string command = "fuzz";
  std::uint64_t seed = 0, cases = 0, rows = 0, elements = 0;
  double seconds = 0;
  std::string verdict = "pass";  ///< pass, violation, inconclusive, crashed or refused
  std::vector<Violation> violations;           ///< at most a few per property and output, smallest witness first
  std::map<std::string, std::uint64_t> violation_counts;  ///< by property: all of the cases, or of the rows of an exhaustive run
  std::map<std::string, Worst> worst;          ///< by output
  std::map<std::string, BoundUsed> bounds;     ///< by output
  IndexRecord gradient_sum_index, sum_index;
  std::map<std::string, Bias> bias;            ///< by output
  std::map<std::string, std::uint64_t> classes_reached;  ///< coverage class -> judged cases
  std::vector<std::string> classes_required;
  std::uint64_t undecided = 0, refused = 0, mistrusted = 0, escalated = 0;
  std::string refusal;                         ///< reason of the first refusal
  std::map<std::string, std::string> environment;  ///< cpu, target, compiler, flags, versions
  std::map<std::string, std::string> contract; ///< printable contract of the kernel
  std::optional<Tally> tally;                  ///< what the counts and records come from; needed to merge

  /// Counts and means of the tally, and whether it is exhaustive.
  void count(const Tally& tally);

  /// What is counted: the rows of an exhaustive run, otherwise cases; and how many.
  const char* unit() const { return command == "exhaust" ? "rows" : "cases"; }
  std::uint64_t judged() const { return command == "exhaust" ? rows : cases; }

  std::vector<std::string> classes_missing() const;
  Exit exit_code() const;
};

}  // namespace sumzero
