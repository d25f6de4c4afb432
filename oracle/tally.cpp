#include "oracle/tally.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "oracle/json.hpp"
#include "reference/case.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

void take(Words& first, const Words& words) {
  if (std::tie(words.index, words.text) < std::tie(first.index, first.text)) first = words;
}

/// Joins maps of things that `take` chooses from.
template <class Map>
void take_all(Map& mine, const Map& other) {
  for (const auto& [key, value] : other) {
    const auto [found, added] = mine.emplace(key, value);
    if (!added) take(found->second, value);
  }
}

template <class Map>
void add_all(Map& mine, const Map& other) {
  for (const auto& [key, value] : other) mine[key] += value;
}

std::string text(const Share& share) { return fmt::format("{}/{}", share.shard, share.shards); }

/// Whether two different shares have a case in common.
bool overlap(const Share& a, const Share& b) {
  const std::uint64_t period = b.shards / std::gcd(a.shards, b.shards);
  for (std::uint64_t k = 0; k < std::min(a.drawn, period); ++k) {
    const std::uint64_t index = a.shard + k * a.shards;
    if (index % b.shards == b.shard) return index < b.shard + b.drawn * b.shards;
  }
  return false;
}

json to_json(const Place& place) { return {{"index", place.index}, {"row", place.row}, {"entry", place.entry}, {"value", hex_text(place.value)}}; }
Place place_from(const JsonValue& value) {
  return {value.at("index").count(), value.at("row").integer(), value.at("entry").integer(), value.at("value").number()};
}

json to_json(const std::map<std::string, Place>& places) {
  json result = json::object();
  for (const auto& [output, place] : places) result[output] = to_json(place);
  return result;
}
std::map<std::string, Place> places_from(const JsonValue& value) {
  std::map<std::string, Place> result;
  for (const auto& [output, place] : value.fields()) result[output] = place_from(place);
  return result;
}

std::map<std::string, std::uint64_t> counts_from(const JsonValue& value) {
  std::map<std::string, std::uint64_t> result;
  for (const auto& [key, count] : value.fields()) result[key] = count.count();
  return result;
}

json to_json(const Share& share) {
  json signed_ulps = json::object();
  for (const auto& [output, sum] : share.signed_ulps) signed_ulps[output] = hex_text(sum);
  return {{"shard", share.shard}, {"shards", share.shards}, {"drawn", share.drawn}, {"cases", share.cases}, {"rows", share.rows},
          {"elements", share.elements}, {"undecided", share.undecided}, {"refused", share.refused}, {"mistrusted", share.mistrusted},
          {"escalated", share.escalated}, {"seconds", number_json(share.seconds)}, {"violation_counts", share.violation_counts},
          {"classes_reached", share.classes_reached}, {"judged", share.judged}, {"signed_ulps", signed_ulps}, {"profile", to_json(share.profile)}};
}
Share share_from(const JsonValue& value) {
  Share share;
  share.shard = value.at("shard").count();
  share.shards = value.at("shards").count();
  if (share.shard >= share.shards) value.fail(fmt::format("names shard {} of {}", share.shard, share.shards));
  for (const auto& [field, to] : {std::pair("drawn", &share.drawn), std::pair("cases", &share.cases), std::pair("rows", &share.rows),
                                  std::pair("elements", &share.elements), std::pair("undecided", &share.undecided), std::pair("refused", &share.refused),
                                  std::pair("mistrusted", &share.mistrusted), std::pair("escalated", &share.escalated)})
    *to = value.at(field).count();
  share.seconds = value.at("seconds").number();
  share.violation_counts = counts_from(value.at("violation_counts"));
  share.classes_reached = counts_from(value.at("classes_reached"));
  share.judged = counts_from(value.at("judged"));
  for (const auto& [output, sum] : value.at("signed_ulps").fields()) share.signed_ulps[output] = sum.number();
  if (const auto profile = value.find("profile")) share.profile = profile_from_json(*profile);
  return share;
}

}  // namespace

void take(Place& best, const Place& place) {
  if (place.value < best.value) return;
  if (place.value > best.value || std::tie(place.index, place.row, place.entry) < std::tie(best.index, best.row, best.entry)) best = place;
}

void Tally::join(const Tally& other) {
  if (std::tie(op, kernel, format, seed) != std::tie(other.op, other.kernel, other.format, other.seed))
    throw InvalidInput(fmt::format("{}/{}/{} with seed {} and {}/{}/{} with seed {} are different campaigns; merge each on its own", op, kernel, format,
                                   seed, other.op, other.kernel, other.format, other.seed));
  if (length != other.length) throw InvalidInput(fmt::format("{}/{}/{}: an exhaustive run and another one cannot be merged; merge each on its own", op, kernel, format));
  for (const Share& share : other.shares) {
    const auto same = std::find_if(shares.begin(), shares.end(), [&](const Share& s) { return s.shard == share.shard && s.shards == share.shards; });
    if (same != shares.end()) {
      if (std::tie(share.drawn, same->seconds) > std::tie(same->drawn, share.seconds)) *same = share;  // of equal ones the quicker
      continue;
    }
    for (const Share& mine : shares)
      if (overlap(mine, share))
        throw InvalidInput(fmt::format("shards {} and {} of {}/{}/{} have cases in common; merge shards of one division", text(mine), text(share), op,
                                       kernel, format));
    shares.push_back(share);
  }
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) { return std::tie(a.shards, a.shard) < std::tie(b.shards, b.shard); });
  take_all(ulp, other.ulp);
  take_all(ratio, other.ratio);
  take_all(gradient_sum, other.gradient_sum);
  take_all(sum, other.sum);
  take_all(complaints, other.complaints);
  take_all(words, other.words);
}

Share Tally::total() const {
  Share total;
  total.shards = 0;
  for (const Share& share : shares) {
    total.drawn += share.drawn, total.cases += share.cases, total.rows += share.rows, total.elements += share.elements;
    total.undecided += share.undecided, total.refused += share.refused, total.mistrusted += share.mistrusted;
    total.escalated += share.escalated, total.seconds += share.seconds;
    add_all(total.violation_counts, share.violation_counts);
    add_all(total.classes_reached, share.classes_reached);
    add_all(total.judged, share.judged);
    add_all(total.signed_ulps, share.signed_ulps);
    total.profile.join(share.profile);
  }
  return total;
}

bool Tally::exhausted() const {
  const Share all = total();
  return length > 0 && all.drawn == chunks && all.cases == chunks && all.refused == 0 && all.undecided == 0;
}

json to_json(const Tally& tally) {
  json shares = json::array(), complaints = json::array(), words = json::object();
  for (const Share& share : tally.shares) shares.push_back(to_json(share));
  for (const auto& [complaint, place] : tally.complaints)
    complaints.push_back({{"property", complaint.property}, {"kind", complaint.kind}, {"output", complaint.output}, {"worst", to_json(place)}});
  for (const auto& [verdict, first] : tally.words) words[verdict] = {{"index", first.index}, {"text", valid_utf8(first.text)}};
  return {{"operator", tally.op}, {"kernel", valid_utf8(tally.kernel)}, {"dtype", tally.format}, {"seed", tally.seed}, {"length", tally.length}, {"chunks", tally.chunks},
          {"shares", shares}, {"ulp", to_json(tally.ulp)}, {"ratio", to_json(tally.ratio)},
          {"gradient_sum", to_json(tally.gradient_sum)}, {"sum", to_json(tally.sum)}, {"complaints", complaints}, {"words", words}};
}

Tally tally_from_json(const JsonValue& value) {
  Tally tally;
  tally.op = value.at("operator").text();
  tally.kernel = value.at("kernel").text();
  tally.format = value.at("dtype").text();
  tally.seed = value.at("seed").count();
  if (const auto length = value.find("length")) tally.length = length->count();
  if (const auto chunks = value.find("chunks")) tally.chunks = chunks->count();
  for (const JsonValue& share : value.at("shares").items()) tally.shares.push_back(share_from(share));
  tally.ulp = places_from(value.at("ulp"));
  tally.ratio = places_from(value.at("ratio"));
  tally.gradient_sum = places_from(value.at("gradient_sum"));
  tally.sum = places_from(value.at("sum"));
  for (const JsonValue& item : value.at("complaints").items())
    tally.complaints[{item.at("property").text(), item.at("kind").text(), item.at("output").text()}] = place_from(item.at("worst"));
  for (const auto& [verdict, first] : value.at("words").fields()) tally.words[verdict] = {first.at("index").count(), first.at("text").text()};
  return tally;
}

}  // namespace sumzero
