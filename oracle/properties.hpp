// Named properties that need no tolerance: exact facts about one result, and facts about two related results.
//
// A property binds itself to operators through the marks of the signature and to kernels through the contract; adding an
// operator adds no property by hand.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oracle/kernel/guarded_run.hpp"
#include "oracle/verdict.hpp"
#include "reference/evaluate.hpp"

namespace sumzero {

struct PropertyContext {
  const Signature& signature;
  const Kernel& kernel;
  const Contract& contract;
  const Case& input;
  const std::vector<Tensor>& outputs;  ///< of the kernel on `input`
  std::function<GuardedRun(const Case&, const GuardedOptions&)> run;
};

/// What broke: output, place, values. The campaign turns it into a Violation.
struct Breach {
  int output = 0;
  std::int64_t row = 0, index = -1;
  double computed = 0;
  std::string message;
};

class Property {
 public:
  Property(std::string name, Verdict verdict, bool reruns) : name(std::move(name)), verdict(verdict), reruns(reruns) {}
  virtual ~Property() = default;
  const std::string name;
  const Verdict verdict;
  const bool reruns;  ///< calls the kernel again: the campaign samples these
  virtual bool applies(const Signature& signature, const Contract& contract) const = 0;
  virtual std::optional<Breach> check(const PropertyContext& context) const = 0;
};

const std::vector<std::unique_ptr<Property>>& properties();
const Property* property_named(std::string_view name);

}  // namespace sumzero
