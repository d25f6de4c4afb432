#include "oracle/profile.hpp"

#include <algorithm>
#include <charconv>

#include "oracle/json.hpp"
#include "reference/case.hpp"

namespace sumzero {
namespace {

using nlohmann::json;

json to_json(const ProfileCell& cell) { return json::array({cell.entries, number_json(cell.lowest), number_json(cell.highest), number_json(cell.bound)}); }
ProfileCell cell_from(const JsonValue& value) {
  const std::vector<JsonValue> items = value.items();
  if (items.size() != 4) value.fail("must hold entries, lowest, highest and bound");
  return {items[0].count(), items[1].number(), items[2].number(), items[3].number()};
}

int place_from(const JsonValue& value, const std::string& text) {
  int place = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), place);
  if (error != std::errc() || end != text.data() + text.size()) value.fail("'" + text + "' is no place on an axis");
  return place;
}

json to_json(const ProfileCells& cells) {
  json result = json::object();
  for (const auto& [place, cell] : cells) result[std::to_string(place)] = to_json(cell);
  return result;
}
ProfileCells cells_from(const JsonValue& value) {
  ProfileCells cells;
  for (const auto& [place, cell] : value.fields()) cells[place_from(value, place)] = cell_from(cell);
  return cells;
}

template <class Map>
void join_cells(Map& mine, const Map& other) {
  for (const auto& [place, cell] : other) mine[place].join(cell);
}

}  // namespace

void ProfileCell::take(double ulp, double bound_ulp) { join({1, ulp, ulp, bound_ulp}); }

void ProfileCell::join(const ProfileCell& other) {
  if (other.entries == 0) return;
  lowest = entries == 0 ? other.lowest : std::min(lowest, other.lowest);
  highest = entries == 0 ? other.highest : std::max(highest, other.highest);
  bound = std::max(bound, other.bound);
  entries += other.entries;
}

void Profile::join(const Profile& other) {
  cases += other.cases;
  for (const auto& [output, theirs] : other.outputs) {
    Output& mine = outputs[output];
    join_cells(mine.by_input, theirs.by_input);
    join_cells(mine.by_binade, theirs.by_binade);
    join_cells(mine.by_length, theirs.by_length);
    for (const auto& [place, entries] : theirs.errors) mine.errors[place] += entries;
  }
  for (const auto& [gap, value] : other.sum_by_gap) {
    double& largest = sum_by_gap[gap];
    largest = std::max(largest, value);
  }
  join_cells(by_layout, other.by_layout);
}

json to_json(const Profile& profile) {
  json outputs = json::object(), sums = json::object(), layouts = json::array();
  for (const auto& [name, output] : profile.outputs) {
    json errors = json::object();
    for (const auto& [place, entries] : output.errors) errors[std::to_string(place)] = entries;
    outputs[name] = {{"by_input", to_json(output.by_input)}, {"by_binade", to_json(output.by_binade)}, {"by_length", to_json(output.by_length)}, {"errors", errors}};
  }
  for (const auto& [gap, value] : profile.sum_by_gap) sums[std::to_string(gap)] = number_json(value);
  for (const auto& [place, cell] : profile.by_layout) layouts.push_back({{"layout", place.first}, {"size", place.second}, {"cell", to_json(cell)}});
  return {{"cases", profile.cases}, {"outputs", outputs}, {"sum_by_gap", sums}, {"by_layout", layouts}};
}

Profile profile_from_json(const JsonValue& value) {
  Profile profile;
  profile.cases = value.at("cases").count();
  for (const auto& [name, output] : value.at("outputs").fields()) {
    Profile::Output& mine = profile.outputs[name];
    mine.by_input = cells_from(output.at("by_input"));
    mine.by_binade = cells_from(output.at("by_binade"));
    mine.by_length = cells_from(output.at("by_length"));
    for (const auto& [place, entries] : output.at("errors").fields()) mine.errors[place_from(output, place)] = entries.count();
  }
  const JsonValue sums = value.at("sum_by_gap");
  for (const auto& [gap, largest] : sums.fields()) profile.sum_by_gap[place_from(sums, gap)] = largest.number();
  for (const JsonValue& item : value.at("by_layout").items())
    profile.by_layout[{item.at("layout").text(), static_cast<int>(item.at("size").integer())}] = cell_from(item.at("cell"));
  return profile;
}

}  // namespace sumzero
