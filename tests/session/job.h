// SPDX-License-Identifier: Apache-2.0
// A job of N ranks in one thread: one session per rank, driven in lockstep.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/compressors/gradients.h"
#include "tidegate/session/lockstep.h"
#include "tidegate/session/session.h"

namespace tidegate {

inline std::span<std::byte> bytes_in(Vector& values) {
  return std::as_writable_bytes(std::span(values));
}

inline Settings fixed(const std::string& method, const std::string& ratio = "") {
  Settings settings{.options = {{"method", method}}};
  if (!ratio.empty()) settings.options["ratio"] = ratio;
  return settings;
}

// At this ratio, or at rank 2, or neither: as the method has it.
inline Settings fixed(const Method& method, const std::string& ratio) {
  Settings settings = fixed(std::string(method.name), method.level == Level::ratio ? ratio : "");
  if (method.level == Level::rank) settings.options["rank"] = "2";
  return settings;
}

inline Settings schedule(const std::string& levels) {
  return {.policy = "schedule", .options = {{"levels", levels}}};
}

class Job {
 public:
  Job(int ranks, const Settings& settings) {
    for (int rank = 0; rank < ranks; ++rank) {
      sessions_.push_back(std::make_unique<Session>(Place{rank, ranks}, settings));
    }
  }

  Session& at(int rank) { return *sessions_[static_cast<std::size_t>(rank)]; }

  void lay_out(int bucket, const Layers& layers) {
    for (const auto& session : sessions_) session->lay_out(bucket, layers);
  }

  // One step of one bucket: gradients[r] is replaced by what rank r gets as the mean.
  void step(Vectors& gradients, float loss_scale = 1.0f) {
    for (std::size_t rank = 0; rank < sessions_.size(); ++rank) {
      submit(rank, {.data = bytes_in(gradients[rank]), .loss_scale = loss_scale, .last = true});
    }
    run();
  }

  // One step of several buckets; each holds one gradient per rank.
  void step(std::vector<Vectors>& buckets) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t rank = 0; rank < sessions_.size(); ++rank) {
        submit(rank, {.data = bytes_in(buckets[b][rank]), .last = b + 1 == buckets.size()});
      }
    }
    run();
  }

  void submit(std::size_t rank, const ReadyBucket& bucket) { sessions_[rank]->submit(bucket); }

  void run() {
    std::vector<Session*> sessions;
    for (const auto& session : sessions_) sessions.push_back(session.get());
    run_lockstep(sessions);
  }

  // What waits for a layer on one rank; empty if nothing ever has.
  Vector residual(int rank, const std::string& layer) {
    State state = at(rank).state();
    state.fold();
    const auto found = state.residuals.find(layer);
    return found == state.residuals.end() ? Vector{} : found->second;
  }

 private:
  std::vector<std::unique_ptr<Session>> sessions_;
};

}  // namespace tidegate
