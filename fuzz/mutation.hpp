// Ways to break a kernel from outside, whatever the operator: the defects that the tool must notice in any kernel it judges.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/operator.hpp"

namespace sumzero {

struct Mutation {
  std::string name, defect;
  /// Whether the defect can change a result of this kernel at all.
  std::function<bool(const Signature&, const Kernel& right, Format)> applies;
  /// The kernel with the defect, or its twin: the same detour without the defect. `right` must outlive it.
  std::function<std::unique_ptr<Kernel>(const Kernel& right, bool planted)> make;
  /// The one case that shows it, where campaigns draw none; and the memory in bytes that it takes.
  std::function<Case(const Signature&, Format)> only_case = nullptr;
  std::uint64_t memory = 0;
};

const std::vector<Mutation>& mutations();

}  // namespace sumzero
