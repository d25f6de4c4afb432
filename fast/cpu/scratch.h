// Working memory of a row kernel: reused by the rows of a thread, so that a row costs no allocation.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace sumzero::fast {

/// Arrays of T, 64-byte aligned, each with room for `length` elements; valid until the thread's next call with the
/// same T.
template <class T>
class Arrays {
 public:
  Arrays(std::size_t count, std::size_t length) {
    constexpr std::size_t line = 64;
    // Three cache lines between the arrays keep equal indices of power-of-two rows out of the same cache set.
    stride_ = ((length * sizeof(T) + line - 1) / line + 3) * line / sizeof(T);
    const std::size_t bytes = count * stride_ * sizeof(T);
    if (bytes > capacity()) {
      memory().reset(static_cast<std::byte*>(std::aligned_alloc(line, bytes)));
      capacity() = memory() ? bytes : 0;
      if (!memory()) throw std::bad_alloc();
    }
    first_ = reinterpret_cast<T*>(memory().get());
  }
  T* operator[](std::size_t index) const { return first_ + index * stride_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  static std::unique_ptr<std::byte, Free>& memory() {
    thread_local std::unique_ptr<std::byte, Free> memory;
    return memory;
  }
  static std::size_t& capacity() {
    thread_local std::size_t capacity = 0;
    return capacity;
  }
  std::size_t stride_;
  T* first_;
};

}  // namespace sumzero::fast
