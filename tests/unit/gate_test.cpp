// The gate: each switch falls for its own reason, and baselines read back or are refused with a sentence.
#include "oracle/gate.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/unit/samples.hpp"

namespace sumzero {
namespace {

using Level = GateSentence::Level;

std::string said(const GateResult& result, Level level) {
  std::string text;
  for (const GateSentence& sentence : result.sentences)
    if (sentence.level == level) text += sentence.text + "\n";
  return text;
}

Baseline stored(const Report& report) { return updated_baseline({report}, std::nullopt); }

Report with_ulp(double ulp) {
  Report report = passing_report();
  report.worst["gx"].ulp = ulp;
  return report;
}

std::string complaint(const std::string& text) {
  try {
    parse_baseline(text, "base.json");
    return "";
  } catch (const InvalidInput& error) {
    return error.what();
  }
}

TEST(Gate, PassesWithoutBaseline) {
  const GateResult result = gate({passing_report()}, std::nullopt);
  EXPECT_EQ(result.exit, Exit::pass);
  EXPECT_TRUE(result.sentences.empty());
  ASSERT_EQ(result.rows.size(), 1u);
  EXPECT_TRUE(result.rows[0].bound_holds && result.rows[0].invariants_hold);
  EXPECT_EQ(result.rows[0].ratchet, Ratchet::no_baseline);
}

TEST(Gate, BoundSwitch) {
  Report report = passing_report();
  report.worst["gx"].bound_ratio = 1;
  EXPECT_EQ(gate({report}, std::nullopt).exit, Exit::pass);
  report.worst["gx"].bound_ratio = std::nextafter(1.0, 2.0);
  const GateResult result = gate({report}, std::nullopt);
  EXPECT_EQ(result.exit, Exit::violation);
  EXPECT_FALSE(result.rows[0].bound_holds);
  EXPECT_TRUE(result.rows[0].invariants_hold);
  EXPECT_NE(said(result, Level::failure).find("times its bound (witness bb22)"), std::string::npos);

  report = failing_report();
  report.violations[0].verdict = Verdict::bound_exceeded;
  report.violation_counts.clear();
  EXPECT_FALSE(gate({report}, std::nullopt).rows[0].bound_holds);
  EXPECT_TRUE(gate({report}, std::nullopt).rows[0].invariants_hold);
}

TEST(Gate, InvariantsSwitch) {
  const GateResult result = gate({failing_report()}, std::nullopt);
  EXPECT_EQ(result.exit, Exit::violation);
  EXPECT_TRUE(result.rows[0].bound_holds);
  EXPECT_FALSE(result.rows[0].invariants_hold);
  EXPECT_NE(said(result, Level::failure).find("gradient sum fails in 17 cases: The gradient of a row sums to 4.1e-8"),
            std::string::npos);
  EXPECT_NE(said(result, Level::failure).find(content_address(collapse_pair())), std::string::npos);
  Report warned = failing_report();
  warned.verdict = "pass";
  warned.violations[0].severity = "warning";
  EXPECT_EQ(gate({warned}, std::nullopt).exit, Exit::pass);
  EXPECT_FALSE(said(gate({warned}, std::nullopt), Level::warning).empty());
}

TEST(Gate, RatchetHoldsWithinTheBudget) {
  const Baseline baseline = stored(with_ulp(2));
  EXPECT_EQ(gate({with_ulp(3)}, baseline).rows[0].ratchet, Ratchet::held);
  EXPECT_EQ(gate({with_ulp(1)}, baseline).rows[0].ratchet, Ratchet::held);
  EXPECT_TRUE(gate({with_ulp(3)}, baseline).sentences.empty());

  const GateResult worse = gate({with_ulp(3.0625)}, baseline);
  EXPECT_EQ(worse.exit, Exit::violation);
  EXPECT_EQ(worse.rows[0].ratchet, Ratchet::worse);
  EXPECT_EQ(worse.rows[0].stored_ulp, 2);
  EXPECT_TRUE(worse.rows[0].bound_holds && worse.rows[0].invariants_hold);
  EXPECT_NE(said(worse, Level::failure).find("rose from 2 to 3.062"), std::string::npos) << said(worse, Level::failure);

  const GateResult better = gate({with_ulp(0.9375)}, baseline);
  EXPECT_EQ(better.exit, Exit::pass);
  EXPECT_EQ(better.rows[0].ratchet, Ratchet::better);
  EXPECT_NE(said(better, Level::note).find("--update-baseline"), std::string::npos);
}

TEST(Gate, RatchetTakesTheBudgetOfTheFile) {
  Baseline baseline = stored(with_ulp(2));
  baseline.budget_ulp = 4;
  EXPECT_EQ(gate({with_ulp(6)}, baseline).rows[0].ratchet, Ratchet::held);
  EXPECT_EQ(gate({with_ulp(6.5)}, baseline).rows[0].ratchet, Ratchet::worse);
}

TEST(Gate, RatchetSurvivesInfinitiesAndNaNs) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(gate({with_ulp(infinity)}, stored(with_ulp(2))).rows[0].ratchet, Ratchet::worse);
  EXPECT_EQ(gate({with_ulp(std::nan(""))}, stored(with_ulp(2))).rows[0].ratchet, Ratchet::worse);
  EXPECT_EQ(gate({with_ulp(infinity)}, stored(with_ulp(infinity))).rows[0].ratchet, Ratchet::held);
  EXPECT_EQ(gate({with_ulp(2)}, stored(with_ulp(infinity))).rows[0].ratchet, Ratchet::better);
}

TEST(Gate, RatchetComparesTheGradientSumIndex) {
  Report report = passing_report();
  report.gradient_sum_index.max = 0x1p23;
  const GateResult result = gate({report}, stored(passing_report()));
  EXPECT_EQ(result.rows[0].ratchet, Ratchet::worse);
  EXPECT_NE(said(result, Level::failure).find("gradient-sum index"), std::string::npos);
}

TEST(Gate, RatchetComparesStoredWitnesses) {
  // The maximum fell, but at the stored case the kernel became worse: only the replay sees it.
  Baseline baseline = stored(with_ulp(2));
  const BaselineKey key = baseline.entries.begin()->first;
  baseline.entries[key].witnesses["0123"]["gx"] = 0.5;
  const Report report = with_ulp(2);
  EXPECT_EQ(gate({report}, baseline).exit, Exit::pass);
  const GateResult result = gate({report}, baseline, {{key, {{"0123", {{"gx", 1.75}}}}}});
  EXPECT_EQ(result.exit, Exit::violation);
  EXPECT_NE(said(result, Level::failure).find("at witness 0123"), std::string::npos);
  EXPECT_EQ(gate({report}, baseline, {{key, {{"0123", {{"gx", 1.5}}}}}}).exit, Exit::pass);
  EXPECT_EQ(gate({report}, baseline, {{{"other", "kernel", "f32"}, {{"0123", {{"gx", 9}}}}}}).exit, Exit::pass);
}

TEST(Gate, NamesWhatIsNewAndWhatWasNotRun) {
  Report other = passing_report();
  other.kernel = "cpu.other";
  const GateResult result = gate({passing_report()}, stored(other));
  EXPECT_EQ(result.exit, Exit::pass);
  EXPECT_NE(said(result, Level::warning).find("cross_entropy/cpu.other/f32"), std::string::npos);
  EXPECT_NE(said(result, Level::note).find("is not in the baseline"), std::string::npos);
  EXPECT_EQ(result.rows[0].ratchet, Ratchet::no_baseline);

  Baseline outputs = stored(passing_report());
  BaselineEntry& entry = outputs.entries.begin()->second;
  entry.outputs["old"] = entry.outputs["gx"];
  entry.outputs.erase("gx");
  const GateResult changed = gate({passing_report()}, outputs);
  EXPECT_NE(said(changed, Level::warning).find("output old"), std::string::npos);
  EXPECT_NE(said(changed, Level::note).find("output gx"), std::string::npos);
}

TEST(Gate, ExitCodeIsTheWorstOfTheRows) {
  Report crashed = passing_report(), open = passing_report(), refused = passing_report();
  crashed.verdict = "crashed";
  open.undecided = 1;
  refused.verdict = "refused";
  EXPECT_EQ(gate({passing_report(), open}, std::nullopt).exit, Exit::inconclusive);
  EXPECT_EQ(gate({failing_report(), open}, std::nullopt).exit, Exit::violation);
  EXPECT_EQ(gate({crashed, failing_report(), open}, std::nullopt).exit, Exit::crash);
  EXPECT_EQ(gate({refused}, std::nullopt).exit, Exit::skipped);
  EXPECT_EQ(gate({refused, open}, std::nullopt).exit, Exit::inconclusive);
  EXPECT_EQ(gate({}, std::nullopt).exit, Exit::inconclusive);
  for (const Report& report : {crashed, failing_report(), open})
    EXPECT_FALSE(said(gate({report}, std::nullopt), Level::failure).empty()) << "a failure without a sentence";
  EXPECT_FALSE(said(gate({refused}, std::nullopt), Level::warning).empty());
  EXPECT_FALSE(said(gate({}, std::nullopt), Level::failure).empty());
}

TEST(Baseline, ReadsBack) {
  Baseline baseline = updated_baseline({passing_report(), failing_report()}, std::nullopt);
  baseline.budget_ulp = 1.5;
  baseline.entries.begin()->second.gradient_sum_index.reset();
  baseline.entries.begin()->second.outputs["gx"].ulp = std::numeric_limits<double>::infinity();
  ASSERT_EQ(baseline.entries.size(), 2u);
  EXPECT_EQ(parse_baseline(baseline_text(baseline), "text"), baseline);
  const std::filesystem::path path = std::filesystem::temp_directory_path() / ("sumzero-baseline-" + std::to_string(::getpid()));
  write_baseline(path, baseline);
  EXPECT_EQ(read_baseline(path), baseline);
  std::filesystem::remove(path);
  EXPECT_THROW(read_baseline(path), InvalidInput);
}

TEST(Baseline, TextIsStable) {
  const Report other = failing_report();
  EXPECT_EQ(baseline_text(updated_baseline({passing_report(), other}, std::nullopt)),
            baseline_text(updated_baseline({other, passing_report()}, std::nullopt)));
  const std::string text = baseline_text(stored(passing_report()));
  EXPECT_TRUE(text.starts_with("{\n  \"schema\": \"sumzero-baseline/1\",\n  \"budget_ulp\": 1.0,\n")) << text;
  EXPECT_TRUE(text.ends_with("}\n"));
}

TEST(Baseline, UpdateReplacesOnlyWhatWasRun) {
  Baseline before = updated_baseline({with_ulp(9), failing_report()}, std::nullopt);
  before.budget_ulp = 3;
  const Baseline after = updated_baseline({with_ulp(2), with_ulp(4), with_ulp(3)}, before);
  EXPECT_EQ(after.budget_ulp, 3);
  ASSERT_EQ(after.entries.size(), 2u);
  const BaselineKey key{"cross_entropy", "cpu.tail", "f32"}, untouched{"cross_entropy", "textbook.pytorch", "f32"};
  EXPECT_EQ(after.entries.at(key).outputs.at("gx").ulp, 4);
  EXPECT_EQ(after.entries.at(key).witnesses.at("aa11").at("gx"), 4);
  EXPECT_EQ(after.entries.at(untouched), before.entries.at(untouched));
  Report refused = passing_report();
  refused.worst.clear();
  EXPECT_EQ(updated_baseline({refused}, before), before);
}

TEST(Baseline, MalformedTextsAreRefused) {
  const std::string good = baseline_text(stored(passing_report()));
  ASSERT_EQ(complaint(good), "");
  for (std::size_t length = 0; length < good.find_last_of('}'); ++length)
    ASSERT_NE(complaint(good.substr(0, length)).find("base.json"), std::string::npos) << length;
  struct {
    const char *what, *by, *expected;
  } const cases[] = {
      {"sumzero-baseline/1", "sumzero-baseline/9", "sumzero-baseline/9"},
      {"\"schema\": \"sumzero-baseline/1\",", "", "'schema' is missing"},
      {"\"budget_ulp\": 1.0", "\"budget_ulp\": -1", "field budget_ulp: must be"},
      {"\"budget_ulp\": 1.0", "\"budget_ulp\": \"nan\"", "field budget_ulp: must be"},
      {"\"budget_ulp\": 1.0", "\"budget\": 1", "unknown field 'budget'"},
      {"\"entries\": [", "\"entries\": {", "line "},
      {"\"kernel\": \"cpu.tail\"", "\"kernel\": null", "field entries[0].kernel: is null"},
      {"\"kernel\": \"cpu.tail\",", "", "'kernel' is missing"},
      {"\"ulp\": 1.25", "\"ulp\": \"many\"", "field entries[0].outputs.gx.ulp: 'many' is not a number"},
      {"\"ulp\": 1.25", "\"ulp\": -1.25", "field entries[0].outputs.gx.ulp: must be"},
      {"\"ulp\": 1.25,", "", "'ulp' is missing"},
      {"\"gradient_sum_index\": 0.8", "\"gradient_sum_index\": []", "gradient_sum_index: is an array"},
      {"\"outputs\": {", "\"outputs\": {\"gx\": {\"ulp\": 1, \"bound_ratio\": 1},", "the key occurs twice"},
      {"\"witnesses\": {", "\"witnesses\": {\"ff\": 3,", "field entries[0].witnesses.ff: is a number"},
  };
  for (const auto& item : cases) {
    const std::string message = complaint(replaced(good, item.what, item.by));
    EXPECT_NE(message.find(item.expected), std::string::npos) << item.by << "\ngave: " << message;
    EXPECT_NE(message.find("base.json"), std::string::npos) << message;
  }
  const std::string entry = good.substr(good.find("    {"), good.rfind("    }") + 5 - good.find("    {"));
  EXPECT_NE(complaint(replaced(good, entry, entry + "," + entry)).find("a second entry for cross_entropy/cpu.tail/f32"),
            std::string::npos);
}

}  // namespace
}  // namespace sumzero
