#include "oracle/kernel/guarded_run.hpp"

#include <fmt/format.h>

#include <cstring>

namespace sumzero {
namespace {

constexpr std::int64_t guard_bytes = 256;

/// A quiet pattern that no arithmetic produces: a NaN with a recognisable payload, or an impossible flag.
void fill_pattern(Tensor& tensor) {
  static constexpr unsigned char f64[] = {0xa5, 0x5a, 0xa5, 0x5a, 0xa5, 0x5a, 0xf4, 0x7f};
  static constexpr unsigned char f32[] = {0xa5, 0x5a, 0xa5, 0x7f};
  static constexpr unsigned char bf16[] = {0xa5, 0x7f};
  static constexpr unsigned char f16[] = {0xa5, 0x7d};
  static constexpr unsigned char flag[] = {0xa5};
  const unsigned char* pattern = flag;
  switch (tensor.format) {
    case Format::f64: pattern = f64; break;
    case Format::f32: pattern = f32; break;
    case Format::bf16: pattern = bf16; break;
    case Format::f16: pattern = f16; break;
    default: break;
  }
  const std::size_t width = traits(tensor.format).bytes;
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = std::byte{pattern[i % width]};
}

Tensor guarded_output(Format format, const std::vector<std::int64_t>& shape, std::int64_t padding) {
  Tensor tensor = Tensor::contiguous(format, shape);
  const std::int64_t guard = guard_bytes / tensor.width();
  if (shape.size() == 2) tensor.strides = {shape[1] + padding, 1};
  const std::int64_t span = shape.size() == 2 ? shape[0] * (shape[1] + padding) : tensor.elements();
  tensor.offset = guard;
  tensor.bytes.resize(static_cast<std::size_t>((span + 2 * guard) * tensor.width()));
  fill_pattern(tensor);
  return tensor;
}

GuardedRun watched_run(const Signature& signature, const Kernel& kernel, const Case& input, const GuardedOptions& options) {
  GuardedRun result;
  const Reduction reduction = reduction_of(signature, attribute_values(signature, input));
  std::vector<Tensor> pristine;
  for (const OutputSpec& spec : signature.outputs) {
    if (!kernel.offers(spec.name)) {
      result.outputs.emplace_back();
      pristine.emplace_back();
      continue;
    }
    result.outputs.push_back(guarded_output(element_format(spec.element, input.storage),
                                            tensor_shape(spec.shape, input, reduction), options.output_padding));
    pristine.push_back(result.outputs.back());
  }
  const auto inputs_before = input.inputs;
  kernel.run(Call{signature, input, result.outputs, options.threads});
  for (const auto& [input_name, tensor] : inputs_before)
    if (tensor.bytes != input.inputs.at(input_name).bytes) {
      result.verdict = Verdict::input_mutated;
      result.detail = fmt::format("input '{}' changed during the call", input_name);
      return result;
    }
  for (std::size_t i = 0; i < result.outputs.size(); ++i) {
    Tensor& tensor = result.outputs[i];
    if (tensor.bytes.empty()) continue;
    const auto width = static_cast<std::size_t>(tensor.width());
    const std::string& output_name = signature.outputs[i].name;
    std::vector<bool> inside(tensor.bytes.size() / width, false);
    for (std::int64_t e = 0; e < tensor.elements(); ++e) {
      const auto position = static_cast<std::size_t>(tensor.position(e));
      inside[position] = true;
      if (result.verdict == Verdict::pass &&
          std::memcmp(&tensor.bytes[position * width], &pristine[i].bytes[position * width], width) == 0) {
        const std::int64_t classes = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
        result.verdict = Verdict::not_fully_written;
        result.output = static_cast<int>(i);
        result.row = e / classes;
        result.index = e % classes;
        result.detail = fmt::format("{}[{}, {}] was not written", output_name, result.row, result.index);
      }
    }
    for (std::size_t position = 0; position < inside.size(); ++position)
      if (!inside[position] &&
          std::memcmp(&tensor.bytes[position * width], &pristine[i].bytes[position * width], width) != 0) {
        result.verdict = Verdict::out_of_bounds;
        result.output = static_cast<int>(i);
        result.detail = fmt::format("{}: wrote outside its elements, {} elements from the start", output_name,
                                    static_cast<std::int64_t>(position) - tensor.offset);
        return result;
      }
  }
  return result;
}

GuardedRun failed_run(Verdict verdict, const std::exception& failure) {
  GuardedRun result;
  result.verdict = verdict;
  result.detail = failure.what();
  return result;
}

}  // namespace

GuardedRun run_guarded(const Signature& signature, const Kernel& kernel, const Case& input, const GuardedOptions& options) {
  try {
    return watched_run(signature, kernel, input, options);
  } catch (const Refused& refusal) {
    return failed_run(Verdict::refused, refusal);
  } catch (const Crashed& crash) {
    return failed_run(Verdict::crashed, crash);
  } catch (const TimedOut& timeout) {
    return failed_run(Verdict::timed_out, timeout);
  } catch (const InputMutated& mutation) {
    return failed_run(Verdict::input_mutated, mutation);
  }
}

}  // namespace sumzero
