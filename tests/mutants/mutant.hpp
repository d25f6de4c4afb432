// The catalogue of planted defects: one kernel with a defect, its twin without, and the property that must notice.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fast/textbook/summation.hpp"
#include "reference/operator.hpp"

namespace sumzero::mutants {

struct Mutant {
  std::string op, name;
  std::string source;           ///< public report (project and number) or the defect in words
  std::vector<Format> formats;  ///< storage formats in which it must be caught
  std::string expected;         ///< property that is violated
  std::function<std::unique_ptr<Kernel>(bool planted)> make;
  std::string missed;           ///< why campaigns do not see it today; empty: it must be caught
};

inline std::vector<Mutant>& catalogue() {
  static std::vector<Mutant> all;
  return all;
}

/// Enters a mutant at start-up: `static const Catalogued mine{...};`
struct Catalogued {
  explicit Catalogued(Mutant mutant) { catalogue().push_back(std::move(mutant)); }
};

inline const std::vector<Format> float_formats = {Format::f32};
inline const std::vector<Format> usual_formats = {Format::f32, Format::bf16};
inline const std::vector<Format> half_formats = {Format::bf16, Format::f16};

/// Sums from left to right in the accumulator, elementary functions of the C library (1 ulp), plain special values.
template <class T>
Contract plain_contract() {
  Contract claim = textbook::contract<T>(textbook::sequential_tree());
  claim.exp_error = claim.log_error = claim.expm1_error = 2;
  return claim;
}

template <bool planted, class Defect>
std::unique_ptr<Kernel> row_kernel(const std::string& op, const std::string& name) {
  RowKernel kernel{.op = op,
                   .name = name,
                   .summary = name,
                   .f32 = Defect::template row<planted, float>,
                   .f64 = Defect::template row<planted, double>,
                   .contract_f32 = plain_contract<float>(),
                   .contract_f64 = plain_contract<double>()};
  if constexpr (requires { Defect::outputs(); }) kernel.outputs = Defect::outputs();
  if constexpr (requires(Contract& claim) { Defect::adjust(claim); }) Defect::adjust(kernel.contract_f32), Defect::adjust(kernel.contract_f64);
  return make_kernel(std::move(kernel));
}

/// A defect inside a row: `Defect` has `template <bool planted, class T> static void row(const Row<T>&)`.
template <class Defect>
Mutant in_row(std::string op, std::string name, std::string source, std::string expected, std::vector<Format> formats = usual_formats,
              std::string missed = {}) {
  auto make = [op, name](bool planted) {
    return planted ? row_kernel<true, Defect>(op, name) : row_kernel<false, Defect>(op, name);
  };
  return {op, name, std::move(source), std::move(formats), std::move(expected), make, std::move(missed)};
}

/// A defect around rows (strides, other rows, ignored rows, reductions): what the call does with a kernel that is right.
using CallDefect = std::function<void(const Kernel& right, const Call& call)>;

class AroundRows final : public Kernel {
 public:
  AroundRows(std::unique_ptr<Kernel> right, CallDefect defect) : right_(std::move(right)), defect_(std::move(defect)) {
    op = right_->op, name = right_->name, summary = right_->summary, outputs = right_->outputs;
  }
  bool supports(Format storage) const override { return right_->supports(storage); }
  Contract contract(Format storage) const override { return right_->contract(storage); }
  void run(const Call& call) const override { defect_(*right_, call); }

 private:
  std::unique_ptr<Kernel> right_;
  CallDefect defect_;
};

/// The same, with `Right` the row function that is right.
template <class Right>
Mutant around_rows(std::string op, std::string name, std::string source, std::string expected, CallDefect defect,
                   std::vector<Format> formats = usual_formats, std::string missed = {}) {
  auto make = [op, name, defect](bool planted) -> std::unique_ptr<Kernel> {
    auto right = row_kernel<false, Right>(op, name);
    return planted ? std::make_unique<AroundRows>(std::move(right), defect) : std::move(right);
  };
  return {op, name, std::move(source), std::move(formats), std::move(expected), make, std::move(missed)};
}

/// Runs the kernel on another case with the same outputs.
inline void run_on(const Kernel& kernel, const Call& call, const Case& other) {
  kernel.run({call.signature, other, call.outputs, call.threads});
}

/// `value` as a number of the format, in the arithmetic type T: an early rounding.
template <class T>
T rounded(Format format, T value) {
  return static_cast<T>(round_to(format, static_cast<double>(value)));
}

}  // namespace sumzero::mutants
