// Exhaustive runs: every row once, counts that a plain loop confirms, and the word `exhaustive` only where all rows were judged.
#include "fuzz/exhaustive.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "fuzz/campaign.hpp"
#include "fuzz/merge.hpp"
#include "oracle/report.hpp"
#include "oracle/witness.hpp"
#include "reference/format.hpp"
#include "tests/case_builder.hpp"

namespace sumzero {
namespace {

namespace fs = std::filesystem;

const Signature& signature(const std::string& op) { return Registry::global().operator_named(op).signature(); }

std::uint64_t bits_of_row(const Case& rows, const std::vector<std::string>& inputs, std::size_t row) {
  std::uint64_t bits = 0;
  for (const std::string& input : inputs) {
    const Tensor& tensor = rows.inputs.at(input);
    const std::size_t n = static_cast<std::size_t>(rows.extents[1]), width = traits(rows.storage).bytes;
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t b = width; b-- > 0;) bits = bits << 8 | static_cast<std::uint64_t>(tensor.bytes[(row * n + j) * width + b]);
  }
  return bits;
}

// The number of a row is its bits: all of them, each once, in order.
TEST(Exhaustives, EveryRowOnce) {
  struct Subject {
    const char* op;
    Format format;
    std::int64_t length;
    std::vector<std::string> inputs;
  };
  for (const Subject& subject : {Subject{"softmax", Format::e4m3, 2, {"x"}}, {"softmax", Format::bf16, 1, {"x"}}, {"log_softmax", Format::e5m2, 3, {"x"}},
                                 {"kl_forward", Format::e5m2, 1, {"s", "t"}}}) {
    SCOPED_TRACE(subject.op);
    const Exhaustive all(signature(subject.op), subject.format, subject.length);
    EXPECT_EQ(all.rows(), std::uint64_t{1} << (8 * traits(subject.format).bytes * static_cast<std::size_t>(subject.length) * subject.inputs.size()));
    std::uint64_t next = 0;
    for (std::uint64_t chunk = 0; chunk < all.chunks(); chunk += all.chunks() > 4 ? 93 : 1) {
      const Case rows = all.chunk(chunk);
      next = chunk * (all.rows() / all.chunks());
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows.extents[0]); ++r) ASSERT_EQ(bits_of_row(rows, subject.inputs, r), next++) << chunk;
      const Case alone = all.row(chunk, rows.extents[0] - 1);
      EXPECT_EQ(alone.extents[0], 1);
      EXPECT_EQ(bits_of_row(alone, subject.inputs, 0), next - 1);
      for (const Case* one : {&rows, &alone}) EXPECT_NO_THROW(validate(signature(subject.op), *one));
    }
    EXPECT_EQ(next, all.rows());
  }
  // Two bf16 logits are 2^32 rows; the last chunk ends with both of all ones.
  const Exhaustive pairs(signature("cross_entropy"), Format::bf16, 2);
  EXPECT_EQ(pairs.rows(), std::uint64_t{1} << 32);
  EXPECT_EQ(bits_of_row(pairs.row(pairs.chunks() - 1, 0x3fff), {"x"}, 0), 0xffffffffu);
  EXPECT_EQ(bits_of_row(pairs.row(4, 2), {"x"}, 0), 0x10002u);
}

TEST(Exhaustives, LengthsWithinReach) {
  EXPECT_EQ(Exhaustive::default_length(signature("softmax"), Format::e4m3), 4);
  EXPECT_EQ(Exhaustive::default_length(signature("softmax"), Format::f16), 2);
  EXPECT_EQ(Exhaustive::default_length(signature("softmax"), Format::f32), 1);
  EXPECT_EQ(Exhaustive::default_length(signature("kl_forward"), Format::bf16), 1);
  EXPECT_EQ(Exhaustive::default_length(signature("kl_forward"), Format::e5m2), 2);
  using Row = std::tuple<const char*, Format, std::int64_t>;
  for (const auto& [op, format, length] :
       {Row("softmax", Format::bf16, 3), Row("softmax", Format::f64, 1), Row("kl_forward", Format::bf16, 2), Row("softmax", Format::e4m3, 0),
        Row("softmax", Format::e4m3, -1), Row("sdpa", Format::e4m3, 1), Row("soft_cross_entropy", Format::e4m3, 1), Row("softmax.merge", Format::e4m3, 1)})
    EXPECT_THROW(Exhaustive(signature(op), format, length), InvalidInput) << op << length;
  EXPECT_THROW(Exhaustive(signature("softmax"), Format::e4m3, std::numeric_limits<std::int64_t>::max()), InvalidInput);
}

/// Planted: a correct softmax in double that drops the first probability where the second logit is exactly 2 and the first
/// lies in [1, 2).
bool is_dropped(double first, double second) { return second == 2 && first >= 1 && first < 2; }
void planted_row(const Row<float>& row) {
  double m = row.in[0][0], s = 0;
  for (std::size_t j = 1; j < row.n; ++j) m = std::max<double>(m, row.in[0][j]);
  for (std::size_t j = 0; j < row.n; ++j) {
    if (std::isnan(row.in[0][j])) m = row.in[0][j];
    s += std::exp(row.in[0][j] - m);
  }
  for (std::size_t j = 0; j < row.n; ++j) row.out[0][j] = static_cast<float>(std::exp(row.in[0][j] - m) / s);
  if (row.n == 2 && is_dropped(row.in[0][0], row.in[0][1])) row.out[0][0] = 0;
}
Contract planted_contract() {
  Contract contract;
  contract.policies = false;
  return contract;
}
const Registered planted{RowKernel{"softmax", "planted.exhaust", "planted for the tests", planted_row, nullptr, planted_contract(), {}, {}, {"p"}}};

class ExhaustiveRuns : public testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("sumzero_exhaust_" + std::to_string(::getpid()) + "_" +
                                          testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder);
    options.op = "softmax";
    options.kernel = "fast.plain";
    options.format = Format::e5m2;
    options.exhaust = 2;
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder;
  CampaignOptions options;
};

nlohmann::json timeless(Report report) {
  report.seconds = 0;
  for (Share& share : report.tally->shares) share.seconds = 0;
  return to_json(report);
}

TEST_F(ExhaustiveRuns, AllRowsOfAKernelThatHolds) {
  const Report report = run_campaign(options);
  EXPECT_EQ(report.exit_code(), Exit::pass) << terminal_summary(report);
  EXPECT_EQ(report.command, "exhaust");
  EXPECT_EQ(report.rows, 0x10000u);
  EXPECT_EQ(report.undecided, 0u);
  for (const auto& [output, worst] : report.worst) EXPECT_EQ(worst.kind, "exhaustive") << output;
  EXPECT_EQ(report.classes_reached.at(every_row(2)), 4u);  // chunks
  EXPECT_NE(terminal_summary(report).find("exhaustive"), std::string::npos);
  EXPECT_EQ(to_json(report_from_json(to_json(report))), to_json(report));
}

// The defect is found whatever the chance of drawing it; its count is that of a plain loop, its witness one row.
TEST_F(ExhaustiveRuns, CountsEveryRowOfADefect) {
  options.kernel = "planted.exhaust";
  options.out = folder;
  const Report report = run_campaign(options);
  std::uint64_t dropped = 0;
  for (unsigned row = 0; row < 0x10000; ++row)
    dropped += is_dropped(decode_e5m2(static_cast<std::uint8_t>(row >> 8)), decode_e5m2(static_cast<std::uint8_t>(row & 0xff)));
  ASSERT_GT(dropped, 1u);
  EXPECT_EQ(report.exit_code(), Exit::violation);
  EXPECT_EQ(report.violation_counts.at("bound"), dropped);
  for (const auto& [output, worst] : report.worst) EXPECT_EQ(worst.kind, "exhaustive") << output;
  const auto found = std::find_if(report.violations.begin(), report.violations.end(), [](const Violation& v) { return v.property == "bound"; });
  ASSERT_NE(found, report.violations.end());
  EXPECT_EQ(found->input.extents, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(is_dropped(found->input.inputs.at("x").get(0), found->input.inputs.at("x").get(1)));
  EXPECT_EQ(read_witness(folder / "witness" / (found->witness + ".json")), found->input);
  EXPECT_NE(terminal_summary(report).find("rows"), std::string::npos);
}

// Four chunks in shares, one of them stopped on the way: only the whole is exhaustive, and it is one run.
TEST_F(ExhaustiveRuns, PartsAreInconclusiveUntilJoined) {
  options.kernel = "planted.exhaust";
  const Report whole = run_campaign(options);
  options.shards = 3;
  std::vector<Report> shares;
  for (options.shard = 0; options.shard < 3; ++options.shard) {
    options.out = folder / std::to_string(options.shard);
    options.cases = 1, options.resume = false;
    const Report stopped = run_campaign(options);
    options.cases.reset(), options.resume = true;
    shares.push_back(run_campaign(options));
    EXPECT_EQ(stopped.cases, 1u);
    EXPECT_EQ(shares.back().cases, options.shard == 0 ? 2u : 1u);
    for (const Report& part : {stopped, shares.back()}) {
      EXPECT_EQ(part.worst.begin()->second.kind, "sampled");
      EXPECT_EQ(part.classes_missing(), std::vector<std::string>{every_row(2)});
    }
    Report held = shares.back();
    held.violations.clear(), held.verdict = "pass";
    EXPECT_EQ(held.exit_code(), Exit::inconclusive);
  }
  EXPECT_EQ(merge_reports(shares[0], shares[1]).worst.begin()->second.kind, "sampled");
  const Report merged = merge_reports(merge_reports(shares[2], shares[0]), merge_reports(shares[1], shares[2]));
  const auto exact_part = [](const Report& report) {
    nlohmann::json json = timeless(report);
    json.erase("bias");  // sums of the shares, in another order
    json["campaign"].erase("shares");
    return json;
  };
  EXPECT_EQ(exact_part(merged), exact_part(whole));
  EXPECT_EQ(merged.worst.begin()->second.kind, "exhaustive");

  // Other runs do not mix with it, in memory or in a folder.
  options.shard = 1, options.out = folder / "1";
  for (const auto& [format, length] : {std::pair(Format::e5m2, 1), {Format::e4m3, 2}, {Format::e5m2, 0}}) {
    options.format = format, options.exhaust = length, options.cases = 1;
    EXPECT_THROW(run_campaign(options), InvalidInput) << length;
    CampaignOptions elsewhere = options;
    elsewhere.out.reset(), elsewhere.resume = false;
    EXPECT_THROW(merge_reports(merged, run_campaign(elsewhere)), InvalidInput) << length;
  }
}

}  // namespace
}  // namespace sumzero
