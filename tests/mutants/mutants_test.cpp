// Every mutant through the cases of a short campaign: the planted kernel breaks the expected property, its twin none.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "fuzz/campaign.hpp"
#include "fuzz/examine.hpp"
#include "reference/evaluate.hpp"
#include "tests/mutants/mutant.hpp"

namespace sumzero::mutants {
namespace {

constexpr std::uint64_t seed = 1, case_limit = 384;

struct Outcome {
  std::uint64_t judged = 0;
  std::map<std::string, std::uint64_t> first;  ///< property -> cases until its first confirmed violation
  std::string message;                         ///< of the first violation of all
};

/// The cases of a campaign in order, until `wanted` breaks, or all of them.
Outcome search(const Kernel& kernel, Format format, const std::optional<std::string>& wanted) {
  const OperatorReference& reference = Registry::global().operator_named(kernel.op);
  const Examiner examiner(reference, kernel, format);
  Outcome outcome;
  for (std::uint64_t index = 0; index < case_limit; ++index) {
    const Case input = campaign_case(reference.signature(), format, seed, index);
    const Examination examination = examiner.examine(input, campaign_reruns(index));
    outcome.judged += examination.judged;
    for (const Examination::Item& item : examination.items) {
      if (outcome.first.contains(item.complaint.property)) continue;
      const auto violation = examiner.confirm(input, examination, item);
      if (!violation) continue;
      if (outcome.first.empty()) outcome.message = violation->output + ", case " + std::to_string(index) + ": " + violation->message;
      outcome.first[item.complaint.property] = index + 1;
    }
    if (wanted && outcome.first.contains(*wanted)) break;
  }
  return outcome;
}

std::string all_of(const Outcome& outcome) {
  std::string text;
  for (const auto& [property, calls] : outcome.first) text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", property, calls);
  return text.empty() ? "nothing" : text;
}

class EveryMutant : public testing::TestWithParam<std::size_t> {
 protected:
  const Mutant& mutant() const { return catalogue()[GetParam()]; }
};

TEST_P(EveryMutant, IsCaughtAndItsTwinPasses) {
  const auto planted = mutant().make(true), twin = mutant().make(false);
  for (const Format format : mutant().formats) {
    SCOPED_TRACE(std::string(name(format)) + ", " + mutant().source);
    const Outcome found = search(*planted, format, mutant().expected);
    const auto place = found.first.find(mutant().expected);
    fmt::print("{:<22} {:<34} {:<5} {:>4} calls  {}\n", mutant().op, mutant().name, name(format),
               place == found.first.end() ? "-" : std::to_string(place->second), mutant().missed.empty() ? mutant().expected : "missed: " + mutant().missed);
    if (mutant().missed.empty()) {
      EXPECT_TRUE(place != found.first.end()) << "found instead: " << all_of(found) << "; " << found.message;
    } else {
      EXPECT_TRUE(found.first.empty()) << "no longer missed: " << all_of(found) << "; " << found.message;
    }
    const Outcome right = search(*twin, format, std::nullopt);
    EXPECT_TRUE(right.first.empty()) << "the twin: " << all_of(right) << "; " << right.message;
    EXPECT_GT(right.judged, case_limit / 3) << "the twin refused most cases";
  }
}

std::string test_name(const testing::TestParamInfo<std::size_t>& info) {
  std::string text = catalogue()[info.param].op + "_" + catalogue()[info.param].name;
  std::replace_if(text.begin(), text.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Catalogue, EveryMutant, testing::Range<std::size_t>(0, catalogue().size()), test_name);

}  // namespace
}  // namespace sumzero::mutants
