// What charts are drawn from: the survey agrees with the judge, and joining is a matter of counts and extremes.
#include "oracle/profile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fuzz/campaign.hpp"
#include "fuzz/examine.hpp"
#include "oracle/json.hpp"
#include "oracle/survey.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

/// Largest error and number of entries that the cells of an axis hold.
std::pair<double, std::uint64_t> extreme(const ProfileCells& cells) {
  double largest = 0;
  std::uint64_t entries = 0;
  for (const auto& [place, cell] : cells) largest = std::max({largest, std::fabs(cell.lowest), std::fabs(cell.highest)}), entries += cell.entries;
  return {largest, entries};
}

/// Surveyed cases of `textbook` kernels against what the judge records of the same cases.
TEST(Profiles, TheSurveySeesWhatTheJudgeSees) {
  for (const Format format : {Format::f64, Format::f32, Format::bf16, Format::e4m3}) {
    const OperatorReference& reference = reference_of("softmax");
    const Kernel& kernel = Registry::global().kernel_named("softmax", format == Format::e4m3 ? "fast" : "textbook.pytorch", format);
    const Examiner examiner(reference, kernel, format);
    Profile profile;
    std::map<std::string, OutputRecord> worst;
    std::uint64_t cases = 0;
    double sum_index = 0;
    for (std::uint64_t index = 0; index < 60; ++index) {
      const Examination examination = examiner.examine(campaign_case(reference.signature(), format, 3, index), false);
      if (!examination.judged) continue;
      ++cases;
      sum_index = std::max(sum_index, examination.judgement.gradient_sum_index.value);
      survey(examiner.judge(), campaign_case(reference.signature(), format, 3, index), examination.run.outputs, profile);
      for (const char* output : {"p", "gx"}) {
        const OutputRecord& record = examination.judgement.outputs[static_cast<std::size_t>(reference.signature().output(output))];
        worst[output].ulp = std::max(worst[output].ulp, record.ulp);
        worst[output].elements += record.elements;
      }
    }
    EXPECT_EQ(profile.cases, cases);
    for (const auto& [output, record] : worst) {
      const auto [largest, entries] = extreme(profile.outputs.at(output).by_length);
      // The judge reports the upper end of an enclosure; where an exact value is nearly zero its radius counts.
      EXPECT_NEAR(largest, record.ulp, 1e-4 * record.ulp + 1e-6) << name(format) << ' ' << output;
      EXPECT_LE(entries, record.elements);
      EXPECT_GT(entries, record.elements / 2);
      std::uint64_t errors = 0;
      for (const auto& [place, count] : profile.outputs.at(output).errors) errors += count;
      EXPECT_EQ(errors, entries);
      // Zero has no binade: an error at an exact zero is in the other charts only.
      EXPECT_LE(extreme(profile.outputs.at(output).by_binade).first, largest);
    }
    double surveyed = 0;
    for (const auto& [gap, index] : profile.sum_by_gap) surveyed = std::max(surveyed, index);
    EXPECT_LE(surveyed, sum_index * (1 + 1e-9)) << name(format);
    EXPECT_GT(surveyed, 0);
  }
}

TEST(Profiles, JoiningIsAssociativeAndGoesThroughFiles) {
  Profile parts[3];
  int at = 0;
  for (Profile& part : parts) {
    ++at;
    part.cases = static_cast<std::uint64_t>(at);
    part.outputs["p"].by_binade[-at].take(0.25 * at, 2);
    part.outputs["p"].by_binade[7].take(-3.0 / at, at);
    part.outputs["p"].errors[-5] = 4;
    part.sum_by_gap[34] = 1.0 / at;
    part.by_layout[{"padded", 5}].take(0.5, 1);
  }
  Profile left = parts[0], right = parts[1];
  left.join(parts[1]), left.join(parts[2]);
  right.join(parts[2]), right.join(parts[0]);
  EXPECT_EQ(left, right);
  EXPECT_EQ(left.outputs.at("p").by_binade.at(7), (ProfileCell{3, -3, -1, 3}));
  EXPECT_EQ(left.sum_by_gap.at(34), 1);
  const nlohmann::json text = to_json(left);
  EXPECT_EQ(profile_from_json(JsonValue(text, "profile")), left);
  nlohmann::json wrong = text;
  wrong["outputs"]["p"]["by_binade"]["seven"] = {1, 0, 0, 0};
  EXPECT_THROW(profile_from_json(JsonValue(wrong, "profile")), InvalidInput);
  wrong = text;
  wrong["outputs"]["p"]["by_binade"]["7"] = {1, 0};
  EXPECT_THROW(profile_from_json(JsonValue(wrong, "profile")), InvalidInput);
}

}  // namespace
}  // namespace sumzero
