#include "fuzz/exhaustive.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sumzero {
namespace {

constexpr int chunk_bits = 14;  // what a case of them takes fits in a cache of megabytes

bool is_enumerated(const InputSpec& spec) { return spec.shape == Shape::row && (spec.role == Role::logits || spec.role == Role::teacher_logits); }

std::int64_t logit_rows(const Signature& signature) {
  const auto rows = std::count_if(signature.inputs.begin(), signature.inputs.end(), is_enumerated);
  const bool others = std::any_of(signature.inputs.begin(), signature.inputs.end(), [](const InputSpec& spec) {
    return !is_enumerated(spec) && !spec.optional && spec.role != Role::upstream && spec.role != Role::label;
  });
  if (signature.axes != Axes::rows || rows == 0 || others)
    throw InvalidInput(fmt::format("{} has inputs other than logits and a label, so its rows cannot be counted through; use fuzz", signature.name));
  return rows;
}

}  // namespace

std::int64_t Exhaustive::default_length(const Signature& signature, Format format) {
  return std::max<std::int64_t>(1, most_bits / (8 * static_cast<std::int64_t>(traits(format).bytes) * logit_rows(signature)));
}

Exhaustive::Exhaustive(const Signature& signature, Format format, std::int64_t length) : signature_(signature) {
  const std::int64_t entry_bits = 8 * static_cast<std::int64_t>(traits(format).bytes), rows = logit_rows(signature);
  if (length < 1 || length > most_bits || length * rows * entry_bits > most_bits)
    throw InvalidInput(fmt::format("{} rows of {} {} logits{} are more than 2^{}; choose a --length from 1 to {}", signature.name, length, name(format),
                                   rows > 1 ? " and as many of the teacher" : "", most_bits, std::max<std::int64_t>(0, most_bits / (entry_bits * rows))));
  const auto bits = static_cast<int>(length * rows * entry_bits);
  rows_per_chunk_ = std::uint64_t{1} << std::min(bits, chunk_bits);
  chunks_ = (std::uint64_t{1} << bits) / rows_per_chunk_;
  template_.op = signature.name;
  template_.storage = format;
  template_.extents = {static_cast<std::int64_t>(rows_per_chunk_), length};
  if (const int reduction = signature.attribute("reduction"); reduction >= 0 && signature.attributes[static_cast<std::size_t>(reduction)].default_value != 0)
    template_.attributes["reduction"] = static_cast<double>(Reduction::none);
  for (const InputSpec& spec : signature.inputs) {
    if (is_enumerated(spec)) enumerated_.push_back(spec.name);
    if (spec.role != Role::upstream && spec.role != Role::label) continue;
    Tensor tensor = Tensor::contiguous(element_format(spec.element, format), tensor_shape(spec.shape, template_, Reduction::none));
    for (std::int64_t i = 0; spec.role == Role::upstream && i < tensor.elements(); i += spec.shape == Shape::row ? length : 1) tensor.set(i, 1);
    template_.inputs[spec.name] = std::move(tensor);
  }
}

Case Exhaustive::rows_from(std::uint64_t first, std::uint64_t count) const {
  Case result = template_;
  result.extents[axis::rows] = static_cast<std::int64_t>(count);
  for (auto& [key, tensor] : result.inputs) {
    tensor.bytes.resize(tensor.bytes.size() / rows_per_chunk_ * count);
    tensor.shape[0] = result.extents[axis::rows];
  }
  const std::size_t width = traits(template_.storage).bytes, length = static_cast<std::size_t>(this->length());
  std::size_t digit = enumerated_.size() * length;  // entries below the one being written
  for (const std::string& input : enumerated_) {
    Tensor tensor = Tensor::contiguous(template_.storage, result.extents);
    std::byte* to = tensor.bytes.data();
    for (std::uint64_t r = 0; r < count; ++r)
      for (std::size_t j = 0; j < length; ++j)
        for (std::size_t b = 0; b < width; ++b) *to++ = static_cast<std::byte>((first + r) >> (8 * ((digit - 1 - j) * width + b)) & 0xff);
    digit -= length;
    result.inputs[input] = std::move(tensor);
  }
  return result;
}

Case Exhaustive::chunk(std::uint64_t index) const { return rows_from(index * rows_per_chunk_, rows_per_chunk_); }

Case Exhaustive::row(std::uint64_t chunk, std::int64_t row) const { return rows_from(chunk * rows_per_chunk_ + static_cast<std::uint64_t>(row), 1); }

}  // namespace sumzero
