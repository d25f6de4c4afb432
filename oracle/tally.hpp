// What a campaign knows of its cases: counts for every share of the case numbers, and where the largest values were found.
// Small whatever the campaign's length, and the same whatever way its shares are joined.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "oracle/profile.hpp"

namespace sumzero {

/// What identifies a violation while its case shrinks.
struct Complaint {
  std::string property, kind, output;
  bool operator==(const Complaint&) const = default;
  auto operator<=>(const Complaint&) const = default;
};

/// A place among the cases: the largest value, and of equal ones the earliest.
struct Place {
  std::uint64_t index = 0;          ///< number of the case
  std::int64_t row = 0, entry = 0;  ///< row and entry, or row and sum
  double value = -1;                ///< -1: none yet
  bool operator==(const Place&) const = default;
};
void take(Place& best, const Place& place);

/// Cases shard, shard + shards, shard + 2 shards, ...: the first `drawn` of them.
struct Share {
  std::uint64_t shard = 0, shards = 1, drawn = 0;
  std::uint64_t cases = 0, rows = 0, elements = 0, undecided = 0, refused = 0, mistrusted = 0, escalated = 0;
  double seconds = 0;
  std::map<std::string, std::uint64_t> violation_counts, classes_reached;
  std::map<std::string, std::uint64_t> judged;  ///< elements by output
  std::map<std::string, double> signed_ulps;    ///< sum by output
  Profile profile;                              ///< of some of the cases
};

/// Words of the first case that something happened to.
struct Words {
  std::uint64_t index = 0;
  std::string text;
  bool operator==(const Words&) const = default;
};

struct Tally {
  std::string op, kernel, format;
  std::uint64_t seed = 0;
  std::uint64_t length = 0, chunks = 0;  ///< of an exhaustive run: logits of a row, cases in all; 0: sampled
  std::vector<Share> shares;  ///< disjoint, by (shards, shard)
  std::map<std::string, Place> ulp, ratio, gradient_sum, sum;  ///< by output
  std::map<Complaint, Place> complaints;                       ///< the worst case of each
  std::map<std::string, Words> words;  ///< by verdict: refused, crashed, timed_out

  /// Adds the shares of another tally of the same campaign; of two states of one share the longer counts. Throws
  /// InvalidInput when the campaigns differ or shares overlap in part. Associative, commutative and idempotent.
  void join(const Tally& other);
  Share total() const;
  /// An exhaustive run of which every row was judged.
  bool exhausted() const;
};

nlohmann::json to_json(const Tally& tally);
Tally tally_from_json(const JsonValue& value);

}  // namespace sumzero
