#include "oracle/subject.hpp"

#include <fmt/format.h>

#include <cstring>

#include "oracle/contract.hpp"
#include "oracle/judge.hpp"
#include "oracle/properties.hpp"

namespace sumzero {
namespace {

/// Presents finished results as a kernel, so that the judge sees nothing special.
class FinishedResults final : public Kernel {
 public:
  FinishedResults(const Signature& signature, const std::vector<Tensor>& results, Contract contract)
      : contract_(std::move(contract)) {
    op = signature.name;
    name = "subject";
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!results[i].bytes.empty()) outputs.push_back(signature.outputs[i].name);
    if (outputs.empty()) throw InvalidInput(op + ": no output was given; call output() before judging");
  }
  bool supports(Format) const override { return true; }
  Contract contract(Format) const override { return contract_; }
  void run(const Call&) const override { throw Refused("finished results cannot be computed again"); }

 private:
  Contract contract_;
};

}  // namespace

Subject::Subject(std::string op, Format storage, std::vector<std::int64_t> extents) {
  case_.op = std::move(op);
  case_.storage = storage;
  case_.extents = std::move(extents);
  contract_ = default_contract(storage);
  outputs_.resize(signature().outputs.size());
  const auto names = axis_names(signature().axes);
  if (case_.extents.size() == names.size()) return;
  std::string known;
  for (const std::string_view axis : names) known += (known.empty() ? "" : ", ") + std::string(axis);
  throw InvalidInput(case_.op + ": " + std::to_string(case_.extents.size()) + " extents were given; its axes are " + known);
}

const Signature& Subject::signature() const { return Registry::global().operator_named(case_.op).signature(); }

Tensor Subject::tensor(const std::string& what, Format format, Shape shape, std::span<const std::byte> bytes) const {
  const Reduction reduction = reduction_of(signature(), attribute_values(signature(), case_));
  Tensor result = Tensor::contiguous(format, tensor_shape(shape, case_, reduction));
  if (result.bytes.size() != bytes.size())
    throw InvalidInput(fmt::format("{}: {} has {} elements; the extents need {}", case_.op, what, bytes.size() / traits(format).bytes,
                                   result.elements()));
  std::memcpy(result.bytes.data(), bytes.data(), bytes.size());
  return result;
}

Subject& Subject::add_input(const std::string& name, Format format, std::span<const std::byte> bytes) {
  const int index = signature().input(name);
  if (index < 0) throw InvalidInput(case_.op + ": unknown input '" + name + "'; see `sumzero list`");
  const InputSpec& spec = signature().inputs[static_cast<std::size_t>(index)];
  case_.inputs[name] = tensor("input '" + name + "'", format, spec.shape, bytes);
  return *this;
}

Subject& Subject::add_output(const std::string& name, Format format, std::span<const std::byte> bytes) {
  const int index = signature().output(name);
  if (index < 0) throw InvalidInput(case_.op + ": unknown output '" + name + "'; see `sumzero list`");
  const OutputSpec& spec = signature().outputs[static_cast<std::size_t>(index)];
  const Format expected = element_format(spec.element, case_.storage);
  if (format != expected)
    throw InvalidInput(fmt::format("{}: output '{}' has format {}; storage {} needs {}", case_.op, name, sumzero::name(format),
                                   sumzero::name(case_.storage), sumzero::name(expected)));
  outputs_[static_cast<std::size_t>(index)] = tensor("output '" + name + "'", format, spec.shape, bytes);
  return *this;
}

Subject& Subject::attribute(const std::string& name, double value) {
  case_.attributes[name] = value;
  return *this;
}

Subject& Subject::attribute(const std::string& name, const std::string& choice) {
  const int index = signature().attribute(name);
  if (index < 0) throw InvalidInput(case_.op + ": unknown attribute '" + name + "'; see `sumzero list`");
  const auto& choices = signature().attributes[static_cast<std::size_t>(index)].choices;
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (choices[i] == choice) return attribute(name, static_cast<double>(i));
  throw InvalidInput(fmt::format("{}: attribute {} has no choice '{}'; see `sumzero list`", case_.op, name, choice));
}

Subject& Subject::contract(Contract contract) {
  contract_ = std::move(contract);
  return *this;
}

std::vector<Violation> Subject::violations() const {
  const OperatorReference& reference = Registry::global().operator_named(case_.op);
  validate(signature(), case_);
  const FinishedResults kernel(signature(), outputs_, contract_);
  const Judge judge(reference, kernel, case_.storage);
  const CaseJudgement judgement = judge.judge(case_, outputs_);
  std::vector<Violation> violations;
  for (const Suspicion& suspicion : judgement.findings)
    if (auto violation = judge.confirm(case_, outputs_, suspicion)) violations.push_back(std::move(*violation));
  const PropertyContext context{signature(), kernel, contract_, case_, outputs_, {}};
  for (const auto& property : properties()) {
    if (property->reruns || !property->applies(signature(), contract_)) continue;
    if (const auto breach = property->check(context)) {
      Violation violation;
      violation.property = property->name;
      violation.verdict = property->verdict;
      violation.output = signature().outputs[static_cast<std::size_t>(breach->output)].name;
      violation.row = breach->row;
      violation.index = breach->index;
      violation.computed = breach->computed;
      violation.message = breach->message;
      violation.input = case_;
      violations.push_back(std::move(violation));
    }
  }
  if (judgement.undecided_rows > 0) {
    Violation violation;
    violation.property = "undecided";
    violation.verdict = Verdict::undecided;
    violation.message = fmt::format("the reference could not certify {} rows", judgement.undecided_rows);
    violation.input = case_;
    violations.push_back(std::move(violation));
  }
  return violations;
}

}  // namespace sumzero
