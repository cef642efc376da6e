// SPDX-License-Identifier: Apache-2.0
// An exchange averages one bucket. It is a coroutine that yields each collective it needs and is
// resumed when the collective has been performed, so that one straight-line description of a method
// serves every driver.
//
//   Exchange exchange = compressor.average(bucket, choice, residual);
//   while (exchange.advance()) perform(exchange.request());
#pragma once

#include <coroutine>
#include <exception>
#include <utility>

#include "tidegate/comm/request.h"

namespace tidegate {

class Exchange {
 public:
  struct promise_type {
    Request request;
    std::exception_ptr error;

    Exchange get_return_object() {
      return Exchange(std::coroutine_handle<promise_type>::from_promise(*this));
    }
    // Nothing runs before the first advance(): when a bucket is compressed is the driver's choice.
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    std::suspend_always yield_value(Request asked) noexcept {
      request = asked;
      return {};
    }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
  };

  Exchange() = default;
  Exchange(Exchange&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Exchange& operator=(Exchange&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Exchange() {
    if (handle_) handle_.destroy();
  }

  // Runs up to the next request. False when the exchange is finished: the bucket holds the mean.
  bool advance() {
    handle_.resume();
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return !handle_.done();
  }

  // What the exchange waits for; valid after advance() returned true.
  const Request& request() const { return handle_.promise().request; }

  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  explicit Exchange(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

}  // namespace tidegate
