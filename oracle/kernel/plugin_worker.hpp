// The worker that loads a shared library (sumzero_plugin.h) and serves its kernel over the worker protocol.
#pragma once

#include <string>

namespace sumzero {

/// Speaks the protocol on standard input and output until the input ends; returns the exit code of the process. A library that
/// cannot be used is answered to `describe` as an error.
int serve_plugin(const std::string& path);

}  // namespace sumzero
