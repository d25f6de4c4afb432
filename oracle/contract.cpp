#include "oracle/contract.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sumzero {
namespace {

SummationTree summation_from(const JsonValue& value) {
  static constexpr const char* kinds[] = {"unknown", "sequential", "pairwise", "lanes", "compensated"};
  const bool plain = value.raw().is_string();
  if (!plain) value.only({"kind", "width", "flush_every"});
  const JsonValue kind = plain ? value : value.at("kind");
  const auto found = std::find(std::begin(kinds), std::end(kinds), kind.text());
  if (found == std::end(kinds)) kind.fail("unknown order; known: unknown, sequential, pairwise, lanes, compensated");
  SummationTree tree;
  tree.kind = static_cast<SummationTree::Kind>(found - std::begin(kinds));
  if (plain) return tree;
  if (const auto width = value.find("width")) tree.width = static_cast<int>(width->integer(1, 1 << 20));
  if (const auto flush = value.find("flush_every")) tree.flush_every = static_cast<int>(flush->integer(0, 1 << 30));
  return tree;
}

}  // namespace

Contract default_contract(Format storage) {
  Contract contract;
  contract.accumulator = accumulator_of(storage);
  contract.exp_error = contract.log_error = contract.expm1_error = 2;
  contract.monotone = false;
  contract.kind = "derived";
  return contract;
}

Contract contract_from(const JsonValue& value, Contract unknown) {
  value.only({"accumulator", "exp_error", "log_error", "expm1_error", "summation", "flush_to_zero", "compensated_shift", "reciprocal", "key_tile", "pivoted",
              "deterministic", "monotone", "policies", "stores_intermediates", "note"});
  Contract contract = std::move(unknown);
  contract.kind = "declared";
  if (const auto accumulator = value.find("accumulator")) {
    const std::optional<Format> format = floating_format_named(accumulator->text());
    if (!format) accumulator->fail(fmt::format("unknown format; known: {}", floating_format_names));
    contract.accumulator = *format;
  }
  const auto error = [&](const char* field, double& to) {
    const auto found = value.find(field);
    if (!found) return;
    to = found->number();
    if (!(to >= 0 && to <= 1e6)) found->fail("must be an error of 0 to 1e6 units of the accumulator's roundoff u");
  };
  error("exp_error", contract.exp_error);
  error("log_error", contract.log_error);
  error("expm1_error", contract.expm1_error);
  if (const auto summation = value.find("summation")) contract.summation = summation_from(*summation);
  const auto flag = [&](const char* field, bool& to) {
    if (const auto found = value.find(field)) to = found->flag();
  };
  flag("flush_to_zero", contract.flush_to_zero);
  flag("compensated_shift", contract.compensated_shift);
  flag("reciprocal", contract.reciprocal);
  flag("pivoted", contract.pivoted);
  if (const auto tile = value.find("key_tile")) contract.key_tile = static_cast<int>(tile->integer(0, 1 << 30));
  flag("deterministic", contract.deterministic);
  flag("monotone", contract.monotone);
  flag("policies", contract.policies);
  flag("stores_intermediates", contract.stores_intermediates);
  if (const auto note = value.find("note")) contract.note = note->text();
  return contract;
}

}  // namespace sumzero
