// SPDX-License-Identifier: Apache-2.0
#include "tidegate/base/workers.h"

#include <algorithm>

#include "tidegate/base/denormals.h"
#include "tidegate/base/error.h"

namespace tidegate {

Workers::Workers(std::size_t threads) : errors_(std::max<std::size_t>(threads, 1)) {
  helpers_.reserve(errors_.size() - 1);
  try {
    for (std::size_t part = 1; part < errors_.size(); ++part) {
      helpers_.emplace_back([this, part] { help(part); });
    }
  } catch (const std::exception& error) {
    close();
    fail(Fault::config, "cannot start ", errors_.size(), " threads (", error.what(),
         "); ask for fewer");
  }
}

Workers::~Workers() { close(); }

void Workers::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Workers::run(const std::function<void(std::size_t)>& work) {
  if (helpers_.empty()) return work(0);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    denormals_are_zero_ = DenormalsAreZero::active();
    busy_ = helpers_.size();
    ++round_;
  }
  changed_.notify_all();
  std::exception_ptr own;
  try {
    work(0);
  } catch (...) {
    own = std::current_exception();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
  work_ = nullptr;
  errors_[0] = own;
  std::exception_ptr first;
  for (std::exception_ptr& error : errors_) {
    if (!first) first = error;
    error = nullptr;
  }
  if (first) std::rethrow_exception(first);
}

void Workers::help(std::size_t part) {
  std::size_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_) return;
    seen = round_;
    const auto* work = work_;
    const bool as_zero = denormals_are_zero_;
    lock.unlock();
    std::exception_ptr error;
    try {
      const DenormalsAreZero as_the_caller_has_it(as_zero);
      (*work)(part);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[part] = error;
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace tidegate
