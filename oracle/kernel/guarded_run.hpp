// Runs a kernel on a case under watch: outputs pre-filled with a signalling pattern between guard zones, inputs compared
// before and after.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "oracle/verdict.hpp"
#include "reference/operator.hpp"

namespace sumzero {

/// Thrown by a kernel that runs in a process of its own: it died or broke the protocol on this case (verdict `crashed`).
struct Crashed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Likewise: no answer within the time limit (verdict `timed out`).
struct TimedOut : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Thrown by a kernel that works on a copy of the inputs and finds the copy changed (verdict `input mutated`).
struct InputMutated : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct GuardedOptions {
  int threads = 1;
  std::int64_t output_padding = 0;  ///< elements between the rows of row-shaped outputs
};

struct GuardedRun {
  std::vector<Tensor> outputs;  ///< by signature index; no storage where the kernel does not offer the output
  Verdict verdict = Verdict::pass;  ///< pass, refused, crashed, timed_out, out_of_bounds, input_mutated
                                    ///< or not_fully_written
  int output = 0;                   ///< output that the verdict is about
  std::int64_t row = 0, index = 0;  ///< element that was not written
  std::string detail;               ///< one sentence, or the reason of a refusal
};

/// The case must be valid. Exceptions of the kernel other than Refused and the three above pass through; after those four
/// there are no outputs.
GuardedRun run_guarded(const Signature& signature, const Kernel& kernel, const Case& input, const GuardedOptions& options = {});

}  // namespace sumzero
