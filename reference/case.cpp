#include "reference/case.hpp"

#include <cstring>

namespace sumzero {

std::int64_t checked_product(std::int64_t a, std::int64_t b, const std::string& what) {
  std::int64_t product;
  if (__builtin_mul_overflow(a, b, &product))
    throw InvalidInput(what + ": " + std::to_string(a) + " x " + std::to_string(b) +
                       " elements overflow a 64-bit flat index; use smaller extents");
  return product;
}

Tensor Tensor::contiguous(Format format, std::vector<std::int64_t> shape) {
  Tensor tensor;
  tensor.format = format;
  tensor.shape = std::move(shape);
  tensor.strides.assign(tensor.shape.size(), 1);
  std::int64_t count = 1;
  for (std::size_t axis = tensor.shape.size(); axis-- > 0;) {
    tensor.strides[axis] = count;
    count = checked_product(count, tensor.shape[axis], "tensor");
  }
  tensor.bytes.resize(static_cast<std::size_t>(checked_product(count, tensor.width(), "tensor")));
  return tensor;
}

std::int64_t Tensor::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

bool Tensor::is_contiguous() const {
  std::int64_t expected = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return offset == 0;
}

std::int64_t Tensor::position(std::int64_t index) const {
  std::int64_t position = offset;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    position += (index % shape[axis]) * strides[axis];
    index /= shape[axis];
  }
  return position;
}

Tensor Tensor::packed() const {
  Tensor result = contiguous(format, shape);
  const std::int64_t count = elements(), bytes_each = width();
  if (is_contiguous()) {
    std::memcpy(result.bytes.data(), bytes.data(), static_cast<std::size_t>(count * bytes_each));
    return result;
  }
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(result.bytes.data() + i * bytes_each, bytes.data() + position(i) * bytes_each,
                static_cast<std::size_t>(bytes_each));
  return result;
}

}  // namespace sumzero
