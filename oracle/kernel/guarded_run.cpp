#include "oracle/kernel/guarded_run.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>

namespace sumzero {
namespace {

constexpr std::int64_t guard_bytes = 256;

/// What outputs hold before a run: a NaN with a recognisable payload that no arithmetic produces, or an impossible flag.
/// One-byte numbers have no code to spare. Their first pattern is a NaN, which kernels seldom return; an element that still
/// holds it is looked at again after a second run on another pattern, and was not written where both patterns stand.
enum class Pattern : std::uint8_t { first, second };

void fill_pattern(Tensor& tensor, Pattern pattern) {
  static constexpr unsigned char f64[] = {0xa5, 0x5a, 0xa5, 0x5a, 0xa5, 0x5a, 0xf4, 0x7f};
  static constexpr unsigned char f32[] = {0xa5, 0x5a, 0xa5, 0x7f};
  static constexpr unsigned char bf16[] = {0xa5, 0x7f};
  static constexpr unsigned char f16[] = {0xa5, 0x7d};
  static constexpr unsigned char f8[] = {0x7f};
  static constexpr unsigned char flag[] = {0xa5};
  const unsigned char* bytes = flag;  // also the second pattern of one-byte numbers: an ordinary one
  switch (tensor.format) {
    case Format::f64: bytes = f64; break;
    case Format::f32: bytes = f32; break;
    case Format::bf16: bytes = bf16; break;
    case Format::f16: bytes = f16; break;
    case Format::e4m3:
    case Format::e5m2:
      if (pattern == Pattern::first) bytes = f8;
      break;
    default: break;
  }
  const std::size_t width = traits(tensor.format).bytes;
  for (std::size_t i = 0; i < tensor.bytes.size(); ++i) tensor.bytes[i] = std::byte{bytes[i % width]};
}

Tensor guarded_output(Format format, const std::vector<std::int64_t>& shape, std::int64_t padding) {
  Tensor tensor = Tensor::contiguous(format, shape);
  const std::int64_t guard = guard_bytes / tensor.width();
  if (shape.size() == 2) tensor.strides = {shape[1] + padding, 1};
  const std::int64_t span = shape.size() == 2 ? shape[0] * (shape[1] + padding) : tensor.elements();
  tensor.offset = guard;
  tensor.bytes.resize(static_cast<std::size_t>((span + 2 * guard) * tensor.width()));
  fill_pattern(tensor, Pattern::first);
  if (!is_floating(format) || tensor.width() > 1) return tensor;
  // A NaN of one byte may be what a kernel writes: around the elements the bytes change from place to place.
  std::vector<bool> element(tensor.bytes.size());
  for (std::int64_t e = 0; e < tensor.elements(); ++e) element[static_cast<std::size_t>(tensor.position(e))] = true;
  for (std::size_t i = 0; i < element.size(); ++i)
    if (!element[i]) tensor.bytes[i] = std::byte(167 * i + 89);
  return tensor;
}

/// Outputs of one kind of call before and after it.
struct Filled {
  std::vector<Tensor> before, after;
  bool unchanged(std::size_t output, std::size_t position) const {
    const auto width = static_cast<std::size_t>(before[output].width());
    return std::memcmp(&before[output].bytes[position * width], &after[output].bytes[position * width], width) == 0;
  }
};

GuardedRun watched_run(const Signature& signature, const Kernel& kernel, const Case& input, const GuardedOptions& options) {
  GuardedRun result;
  const Reduction reduction = reduction_of(signature, attribute_values(signature, input));
  Filled first;
  for (const OutputSpec& spec : signature.outputs)
    first.before.push_back(kernel.offers(spec.name) ? guarded_output(element_format(spec.element, input.storage),
                                                                     tensor_shape(spec.shape, input, reduction), options.output_padding)
                                                    : Tensor{});
  first.after = first.before;
  const auto inputs_before = input.inputs;
  kernel.run(Call{signature, input, first.after, options.threads});
  for (const auto& [input_name, tensor] : inputs_before)
    if (tensor.bytes != input.inputs.at(input_name).bytes) {
      result.verdict = Verdict::input_mutated;
      result.detail = fmt::format("input '{}' changed during the call", input_name);
      result.outputs = std::move(first.after);
      return result;
    }
  std::optional<Filled> second;
  const auto unwritten = [&](std::size_t output, std::size_t position) {
    if (!first.unchanged(output, position)) return false;
    const Format format = first.before[output].format;
    if (!is_floating(format) || traits(format).bytes > 1) return true;
    if (!second) {
      second.emplace();
      second->before = first.before;
      for (Tensor& tensor : second->before) fill_pattern(tensor, Pattern::second);
      second->after = second->before;
      kernel.run(Call{signature, input, second->after, options.threads});
    }
    return second->unchanged(output, position);
  };
  for (std::size_t i = 0; i < first.after.size(); ++i) {
    const Tensor& tensor = first.after[i];
    if (tensor.bytes.empty()) continue;
    std::vector<bool> inside(tensor.bytes.size() / static_cast<std::size_t>(tensor.width()), false);
    for (std::int64_t e = 0; e < tensor.elements(); ++e) {
      const auto position = static_cast<std::size_t>(tensor.position(e));
      inside[position] = true;
      if (result.verdict == Verdict::pass && unwritten(i, position)) {
        const std::int64_t classes = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
        result.verdict = Verdict::not_fully_written;
        result.output = static_cast<int>(i);
        result.row = e / classes;
        result.index = e % classes;
        result.detail = fmt::format("{}[{}, {}] was not written", signature.outputs[i].name, result.row, result.index);
      }
    }
    for (std::size_t position = 0; position < inside.size(); ++position)
      if (!inside[position] && !first.unchanged(i, position)) {
        result.verdict = Verdict::out_of_bounds;
        result.output = static_cast<int>(i);
        result.detail = fmt::format("{}: wrote outside its elements, {} elements from the start", signature.outputs[i].name,
                                    static_cast<std::int64_t>(position) - tensor.offset);
        result.outputs = std::move(first.after);
        return result;
      }
  }
  result.outputs = std::move(first.after);
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
