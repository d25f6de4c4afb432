// Row-sized working memory of a thread, kept between rows.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace sumzero::fast {

/// At least n elements, aligned to 64 bytes, contents unspecified. Every (T, Slot) is one buffer of the thread.
template <class T, int Slot>
T* scratch(std::size_t n) {
  struct Buffer {
    T* data = nullptr;
    std::size_t capacity = 0;
    ~Buffer() { std::free(data); }
  };
  thread_local Buffer buffer;
  if (n <= buffer.capacity) return buffer.data;
  std::free(buffer.data);
  buffer.capacity = 0;
  const std::size_t bytes = (n * sizeof(T) + 63) / 64 * 64;
  buffer.data = static_cast<T*>(std::aligned_alloc(64, bytes));
  if (!buffer.data) throw std::bad_alloc();
  buffer.capacity = bytes / sizeof(T);
  return buffer.data;
}

}  // namespace sumzero::fast
