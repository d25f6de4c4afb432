// Times one call of an attention kernel per line of standard input, "KERNEL N BACKWARD" (f32, one head of size 64, one thread),
// and answers with the seconds, so that another process can measure a peer in turns with it.
#include <chrono>
#include <iostream>
#include <string>

#include "reference/evaluate.hpp"

int main() {
  using namespace sumzero;
  const Signature& signature = Registry::global().operator_named("sdpa").signature();
  std::string name;
  std::int64_t n;
  bool backward;
  while (std::cin >> name >> n >> backward) {
    Case input;
    input.op = "sdpa";
    input.extents = {1, 1, 1, n, n, 64, 64};
    input.attributes["tau"] = 0.125;
    std::uint32_t state = 12345;
    for (const char* tensor : {"q", "k", "v", "go"}) {
      if (!backward && std::string(tensor) == "go") continue;
      Tensor& numbers = input.inputs[tensor] = Tensor::contiguous(Format::f32, {1, 1, n, 64});
      for (std::int64_t i = 0; i < numbers.elements(); ++i) {
        state = state * 1664525u + 1013904223u;
        numbers.set(i, static_cast<double>(state >> 8) * 0x1p-23 - 1);
      }
    }
    std::vector<Tensor> outputs;
    for (const OutputSpec& spec : signature.outputs) {
      const bool wanted = spec.name == "o" || (backward && (spec.name == "gq" || spec.name == "gk" || spec.name == "gv"));
      outputs.push_back(wanted ? Tensor::contiguous(Format::f32, tensor_shape(spec.shape, input, Reduction::none)) : Tensor{});
    }
    const Kernel& kernel = Registry::global().kernel_named("sdpa", name, Format::f32);
    kernel.run(Call{signature, input, outputs, 1});  // warm
    const auto start = std::chrono::steady_clock::now();
    kernel.run(Call{signature, input, outputs, 1});
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() << std::endl;
  }
}
