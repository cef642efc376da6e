// SPDX-License-Identifier: Apache-2.0
// Threads for kernels that split their range: as many as asked for and never more, kept between
// calls because starting one costs as much as compressing a small bucket.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tidegate {

class Workers {
 public:
  // `threads` counts the caller's own: 1 starts none.
  explicit Workers(std::size_t threads = 1);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  std::size_t threads() const { return helpers_.size() + 1; }

  // Calls work(part) for every part below threads(), each on a thread of its own, part 0 on the
  // caller's; returns when all are done. What a part throws is thrown here, the lowest part first.
  // One caller at a time.
  void run(const std::function<void(std::size_t part)>& work);

 private:
  void help(std::size_t part);
  void close();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(std::size_t)>* work_ = nullptr;
  bool denormals_are_zero_ = false;  // for the caller, and so for all
  std::size_t round_ = 0;  // counts calls of run(), so that a helper takes part once in each
  std::size_t busy_ = 0;
  bool closing_ = false;
  std::vector<std::exception_ptr> errors_;  // by part
  std::vector<std::thread> helpers_;
};

}  // namespace tidegate
