// The command line as a function, for programs that bring their own kernels:
//
//   #include <fuzz/sumzero.hpp>
//   static const sumzero::Registered mine{sumzero::RowKernel{.op = "softmax", .name = "mine", ..., .f32 = my_row}};
//   int main(int argc, char** argv) { return sumzero::main(argc, argv); }
#pragma once

#include "reference/operator.hpp"

namespace sumzero {

/// Runs one command; returns the exit code (oracle/verdict.hpp, Exit). Never throws.
int main(int argc, char** argv);

}  // namespace sumzero
