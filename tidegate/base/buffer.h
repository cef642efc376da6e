// SPDX-License-Identifier: Apache-2.0
// Memory for numbers: aligned to a cache line, never initialised behind the caller's back, and
// grown without keeping the old content (scratch space needs neither).
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace tidegate {

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  explicit Buffer(std::size_t size) { resize(size); }

  // Content is unspecified afterwards unless the size shrank or stayed.
  void resize(std::size_t size) {
    if (size > capacity_) {
      size_ = capacity_ = 0;
      data_.reset();  // first free, then take: peak memory counts
      data_.reset(static_cast<T*>(::operator new(size * sizeof(T), kAlignment)));
      capacity_ = size;
    }
    size_ = size;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  std::span<T> span() { return {data(), size_}; }
  std::span<const T> span() const { return {data(), size_}; }
  operator std::span<T>() { return span(); }
  operator std::span<const T>() const { return span(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tidegate
