// Causal order and windows.
#pragma once

#include <cstdint>

namespace sumzero {

/// Which keys a query sees by its position: causal order from the top left or the bottom right corner, and a window.
struct Visibility {
  std::int64_t shift = 0;
  bool causal = false;
  double window = 0;
  Visibility(double causal_choice, double window, std::int64_t queries, std::int64_t keys)
      : shift(causal_choice == 2 ? keys - queries : 0), causal(causal_choice != 0), window(window) {}
  bool operator()(std::int64_t query, std::int64_t key) const {
    const std::int64_t behind = query + shift - key;
    if ((causal || window > 0) && behind < 0) return false;
    return !(window > 0) || static_cast<double>(behind) < window;
  }
};

}  // namespace sumzero
