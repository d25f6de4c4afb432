// Special values, masks and determinism: what whole rows and batches say.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "oracle/probe_rows.hpp"

namespace sumzero {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool has_role(const Signature& s, Role role) { return s.input_with(role) >= 0; }

/// Do the outputs equal the reference of the case, special values exactly and numbers to a few digits?
bool equals_reference(const ProbeRows& rows, const Case& input, const std::vector<Tensor>& outputs) {
  CaseEvaluator evaluator(rows.reference(), input);
  RowValues<Ball> values;
  evaluator.row(0, values);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes.empty()) continue;
    const OutputSpec& spec = rows.signature().outputs[i];
    // A policy is seen in the values; gradients of special rows follow it in too many ways.
    if (spec.gradient_of >= 0) continue;
    for (std::int64_t j = 0; j < outputs[i].elements(); ++j) {
      const double seen = outputs[i].get(j), exact = midpoint_hint(values.out[i][static_cast<std::size_t>(j)]);
      const double target = is_floating(outputs[i].format) ? round_to(outputs[i].format, exact) : exact;
      if (std::isnan(seen) != std::isnan(target)) return false;
      if (!std::isnan(seen) && seen != target && !(std::fabs(seen - target) <= 0.1 * std::fabs(target))) return false;
    }
  }
  return true;
}

std::string seen_text(const ProbeRows& rows, const std::vector<Tensor>& outputs) {
  std::string text;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes.empty() || rows.signature().outputs[i].gradient_of >= 0) continue;
    std::string values;
    bool same = true;
    for (std::int64_t j = 0; j < outputs[i].elements(); ++j) {
      const std::string value = fmt::format("{:.4g}", std::isnan(outputs[i].get(j)) ? std::nan("") : outputs[i].get(j));
      same = same && (j == 0 || values.ends_with(value));
      values += (j ? ", " : "") + value;
    }
    if (same && outputs[i].elements() > 1) values = fmt::format("all {:.4g}", std::isnan(outputs[i].get(0)) ? std::nan("") : outputs[i].get(0));
    text += (text.empty() ? "" : "; ") + rows.signature().outputs[i].name + " " + values;
  }
  return text;
}

struct SpecialRow {
  const char* property;
  std::vector<double> logits;
  const char* policy;        ///< attribute that governs the row; null where nothing is to choose
  bool masked = false;       ///< every entry masked instead
};

}  // namespace

void probe_special_values(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  const Signature& s = rows.signature();
  const double nan = std::nan("");
  std::vector<SpecialRow> special = {{"+inf in a row", {0, infinity, 1, -1}, "inf_policy"},
                                     {"two +inf in a row", {0, infinity, 1, infinity}, nullptr},
                                     {"-inf in a row", {0, -infinity, 1, -1}, nullptr},
                                     {"NaN in a row", {0, nan, 1, -1}, nullptr},
                                     {"row of -inf", {-infinity, -infinity, -infinity, -infinity}, "masked_policy"}};
  if (has_role(s, Role::mask)) special.push_back({"fully masked row", {0, 1, 2, 3}, "masked_policy", true});
  bool honours = false, ignores = false;
  for (const SpecialRow& row : special) {
    if (row.logits[1] == infinity && saturates(rows.storage())) {
      state.found(row.property, "", fmt::format("{} has no infinity", name(rows.storage())));
      continue;
    }
    Case input = rows.rows({row.logits});
    if (row.masked) {
      const std::string& mask = s.inputs[static_cast<std::size_t>(s.input_with(Role::mask))].name;
      input.inputs[mask] = Tensor::contiguous(Format::boolean, input.extents);
    }
    const int policy = row.policy ? s.attribute(row.policy) : -1;
    try {
      const std::vector<Tensor> outputs = rows.run(input);
      const std::string evidence = "outputs: " + seen_text(rows, outputs);
      if (policy < 0) {
        state.found(row.property, equals_reference(rows, input, outputs) ? "as the reference" : "differs from the reference", evidence);
        continue;
      }
      const std::vector<std::string>& choices = s.attributes[static_cast<std::size_t>(policy)].choices;
      std::string equal;
      for (std::size_t choice = 0; choice < choices.size(); ++choice) {
        Case asked = input;
        asked.attributes[row.policy] = static_cast<double>(choice);
        if (equals_reference(rows, asked, outputs)) equal += (equal.empty() ? "" : " or ") + choices[choice];
      }
      state.found(row.property, equal.empty() ? "no documented policy" : fmt::format("{} {}", row.policy, equal), evidence);
      input.attributes[row.policy] = 1;
      try {
        (equals_reference(rows, input, rows.run(input)) ? honours : ignores) = true;
      } catch (const NotMeasurable&) {
        ignores = true;
      }
    } catch (const NotMeasurable& reason) {
      state.found(row.property, "no result", reason.what());
    }
  }
  if (!honours && !ignores) {
    state.found("other policies", "", "nothing to choose in this operator or format");
    return;
  }
  state.result.contract.policies = honours && !ignores;
  state.found("other policies", honours && !ignores ? "honoured" : "not honoured", "the rows above with the policy that is not the default");
}

namespace {

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes.empty() ? b.bytes.empty() : a.packed().bytes == b.packed().bytes;  // empty: not offered
}

/// Rows `which` of every output with rows, in that order, one after the other.
std::vector<std::byte> bytes_of_rows(const std::vector<Tensor>& outputs, const std::vector<std::int64_t>& which) {
  std::vector<std::byte> bytes;
  for (const Tensor& output : outputs) {
    if (output.bytes.empty() || output.shape.empty()) continue;
    const Tensor packed = output.packed();
    const std::size_t width = packed.bytes.size() / static_cast<std::size_t>(packed.shape[0]);
    for (const std::int64_t row : which) {
      const auto first = packed.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(row) * width);
      bytes.insert(bytes.end(), first, first + static_cast<std::ptrdiff_t>(width));
    }
  }
  return bytes;
}

/// The same contents with a gap after every element and row.
Tensor spread(const Tensor& tensor) {
  if (tensor.shape.size() != 2) return tensor;
  Tensor wide = tensor;
  wide.strides = {2 * tensor.shape[1] + 3, 2};
  wide.offset = 1;
  wide.bytes.assign(static_cast<std::size_t>((tensor.shape[0] * wide.strides[0] + 2) * tensor.width()), std::byte{0});
  for (std::int64_t i = 0; i < tensor.elements(); ++i) wide.set(i, tensor.get(i));
  return wide;
}

}  // namespace

void probe_determinism(ProbeState& state) {
  const ProbeRows& rows = state.rows;
  std::mt19937_64 random(rows.seed() + 5);
  std::normal_distribution<double> normal(0, 3);
  std::vector<Logits> batch(6, Logits(1027));
  for (Logits& row : batch)
    for (double& x : row) x = round_to(rows.storage(), normal(random));
  const Case input = rows.rows(batch);
  const std::vector<Tensor> first = rows.run(input);
  const auto same = [&](const std::vector<Tensor>& other) { return std::equal(first.begin(), first.end(), other.begin(), same_bits); };
  const auto found = [&](const char* property, bool equal, const std::string& evidence) {
    state.found(property, equal ? "equal bits" : "bits differ", evidence);
    return equal;
  };
  int differing = 0;
  for (int run = 0; run < 8; ++run) differing += !same(rows.run(input));
  const bool repeats = found("repeated runs", differing == 0, fmt::format("{} of 8 runs on 6 rows of 1027 differ from the first", differing));
  bool threads = true;
  for (const int count : {2, 4}) threads = threads && same(rows.run(input, {.threads = count}));
  if (!repeats) state.found("threads", "", "repeated runs differ");
  else found("threads", threads, "1, 2 and 4 threads, where the kernel takes a number of threads");
  state.result.contract.deterministic = repeats && threads;
  if (!repeats) {
    for (const char* property : {"other rows in the batch", "position in the batch", "layout"}) state.found(property, "", "repeated runs differ");
    return;
  }
  bool alone = true;
  for (std::int64_t row = 0; row < 6; ++row)
    alone = alone && bytes_of_rows(first, {row}) == bytes_of_rows(rows.run(rows.rows({batch[static_cast<std::size_t>(row)]})), {0});
  found("other rows in the batch", alone, "each of 6 rows alone and among the others");
  std::reverse(batch.begin(), batch.end());
  const std::vector<Tensor> reversed = rows.run(rows.rows(batch));
  found("position in the batch", bytes_of_rows(first, {0, 1, 2, 3, 4, 5}) == bytes_of_rows(reversed, {5, 4, 3, 2, 1, 0}), "the rows in reverse order");
  Case strided = input;
  for (auto& [name, tensor] : strided.inputs) tensor = spread(tensor);
  try {
    found("layout", same(rows.run(strided, {.output_padding = 3})), "inputs with gaps between elements and rows, outputs with gaps between rows");
  } catch (const NotMeasurable& reason) {
    state.found("layout", "", reason.what());
  }
}

}  // namespace sumzero
