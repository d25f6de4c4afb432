// What charts are drawn from: how the error of a kernel spreads over its inputs, results, lengths and layouts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

namespace sumzero {

class JsonValue;

/// Entries that share a place on an axis.
struct ProfileCell {
  std::uint64_t entries = 0;
  double lowest = 0, highest = 0;  ///< signed error in ulp: the extremes
  double bound = 0;                ///< largest bound among them, in ulp
  void take(double ulp, double bound_ulp);
  void join(const ProfileCell& other);
  bool operator==(const ProfileCell&) const = default;
};
using ProfileCells = std::map<int, ProfileCell>;

/// Counts and extremes over sampled cases. Joining is associative and commutative; small whatever the campaign's length.
struct Profile {
  static constexpr int input_steps = 128;   ///< places on either side of zero that the codes of an input are spread over
  static constexpr int survival_steps = 4;  ///< places in an octave of the error

  struct Output {
    ProfileCells by_input;    ///< place of the entry's logit (where there is none: of the exact value) among the codes of the format
    ProfileCells by_binade;   ///< exponent of the exact value
    ProfileCells by_length;   ///< binary logarithm of the classes or keys, in halves
    std::map<int, std::uint64_t> errors;  ///< floor(survival_steps log2 |error in ulp|) -> entries; errors of 0: lowest_error
    bool operator==(const Output&) const = default;
  };
  static constexpr int lowest_error = -160;

  std::uint64_t cases = 0;
  std::map<std::string, Output> outputs;
  std::map<int, double> sum_by_gap;  ///< lead of the row's maximum, in halves -> largest gradient-sum index
  std::map<std::pair<std::string, int>, ProfileCell> by_layout;  ///< (layout, binary logarithm of the elements), in parts of the bound

  void join(const Profile& other);
  bool operator==(const Profile&) const = default;
};

nlohmann::json to_json(const Profile& profile);
Profile profile_from_json(const JsonValue& value);

}  // namespace sumzero
