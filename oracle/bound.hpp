#pragma once
#include <string>
#include <vector>
namespace sumzero { struct EmbeddedBound { std::string name, text; }; const std::vector<EmbeddedBound>& embedded_bounds(); }
