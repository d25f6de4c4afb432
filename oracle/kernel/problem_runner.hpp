// Runs a row function on problems that are more than a row: every part is gathered, converted, computed and scattered.
#pragma once

#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "reference/operator.hpp"

namespace sumzero {

/// 64-byte aligned scratch memory for rows.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::size_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes == 0 ? 64 : bytes));
    if (!data_) throw std::bad_alloc();
  }
  ~Scratch() { std::free(data_); }
  Scratch(Scratch&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() { return data_; }

 private:
  T* data_;
};

/// One problem after the other, on OpenMP threads.
template <class T>
void run_problems(RowFunction<T> function, const Kernel& kernel, const Call& call) {
  const Signature& signature = call.signature;
  const Case& input = call.input;
  const std::vector<double> attributes = attribute_values(signature, input);
  const std::int64_t problems = problem_count(signature, input);
  std::array<const Tensor*, max_inputs> inputs{};
  for (std::size_t i = 0; i < signature.inputs.size(); ++i)
    if (const auto found = input.inputs.find(signature.inputs[i].name); found != input.inputs.end()) inputs[i] = &found->second;
  const auto scratch = [&](const auto& specs) {
    std::vector<Scratch<T>> buffers;
    for (const auto& spec : specs) buffers.emplace_back(static_cast<std::size_t>(part_elements(spec.shape, input)));
    return buffers;
  };
  std::exception_ptr failure;
#pragma omp parallel num_threads(call.threads) if (call.threads > 1 && problems > 1)
  {
    try {
      std::vector<Scratch<T>> in = scratch(signature.inputs), out = scratch(signature.outputs);
      Row<T> row;
      row.n = static_cast<std::size_t>(normalised_extent(signature, input));
      row.attribute = attributes.data();
      row.storage = input.storage;
      row.extents = input.extents.data();
#pragma omp for schedule(dynamic)
      for (std::int64_t problem = 0; problem < problems; ++problem) {
        for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
          if (!inputs[i]) continue;
          load_part(part_of(*inputs[i], signature.inputs[i].shape, input, problem), inputs[i]->format, in[i].data());
          row.in[i] = in[i].data();
        }
        for (std::size_t i = 0; i < signature.outputs.size(); ++i)
          row.out[i] = kernel.offers(signature.outputs[i].name) && !call.outputs[i].bytes.empty() ? out[i].data() : nullptr;
        function(row);
        for (std::size_t i = 0; i < signature.outputs.size(); ++i)
          if (row.out[i]) store_part(part_of(call.outputs[i], signature.outputs[i].shape, input, problem), call.outputs[i].format, out[i].data());
      }
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sumzero
