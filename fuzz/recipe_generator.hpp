// The only door to RapidCheck: it generates recipes from a seed and enumerates smaller ones.
#pragma once

#include <functional>

#include "fuzz/recipe.hpp"

namespace sumzero {

/// Recipe number `index` of the campaign with this seed; the same on every thread and in every run.
Recipe generate_recipe(const Signature& signature, std::uint64_t seed, std::uint64_t index);

/// Walks towards smaller recipes of the same origin for which `fails` stays true, testing at most `budget` candidates.
Recipe shrink_recipe(const Signature& signature, std::uint64_t seed, std::uint64_t index,
                     const std::function<bool(const Recipe&)>& fails, int budget);

}  // namespace sumzero
