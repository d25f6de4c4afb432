// What a run depended on besides its input: recorded in every report so that a difference can be explained.
#pragma once

#include <map>
#include <string>

namespace sumzero {

/// Version, processor, compiler, flags and library versions. The caller adds "target", the SIMD target that was run.
/// Nothing that names a person or a machine.
std::map<std::string, std::string> environment();

}  // namespace sumzero
