// SPDX-License-Identifier: Apache-2.0
// N ranks that average one bucket by one method, step after step; residuals are carried along.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/compressors/gradients.h"
#include "tidegate/comm/lockstep.h"
#include "tidegate/comm/routes.h"
#include "tidegate/comm/threads.h"
#include "tidegate/compressors/method.h"
#include "tidegate/network/price.h"

namespace tidegate {

// A matrix, as square as it can be, and what is left over as a vector.
inline Layers matrix_and_rest(std::size_t elements) {
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  const std::size_t rest = rows == 0 ? 0 : elements % rows;
  Layers layers{{"matrix", elements - rest, rows}};
  if (rest > 0) layers.push_back({"rest", rest});
  return layers;
}

// A level of the method: this ratio, or rank 2.
inline double level_of(const Method& method, double ratio) {
  return method.level == Level::rank ? 2 : ratio;
}

class Averaging {
 public:
  Averaging(const Choice& choice, int ranks, std::size_t elements, std::size_t threads = 1)
      : Averaging(choice, ranks,
                  choice.method->level == Level::rank ? matrix_and_rest(elements)
                                                      : Layers{{"all", elements}},
                  threads) {}

  Averaging(const Choice& choice, int ranks, const Layers& layers, std::size_t threads = 1)
      : residuals(static_cast<std::size_t>(ranks),
                  Vector(choice.method->error_feedback ? elements_of(layers) : 0)),
        choice_(choice),
        layers_(layers),
        arrived_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      workers_.push_back(std::make_unique<Workers>(threads));
      compressors_.push_back(choice.method->make({rank, ranks}, *workers_.back()));
    }
  }

  // Replaces gradients[r] by what rank r gets as the mean.
  void step(Vectors& gradients, float loss_scale = 1.0f) {
    std::vector<Exchange> exchanges;
    for (std::size_t rank = 0; rank < compressors_.size(); ++rank) {
      exchanges.push_back(exchange(rank, gradients[rank], loss_scale));
    }
    asked.clear();
    bytes_sent.assign(exchanges.size(), 0);
    run_lockstep(exchanges, [this](std::span<const Request> requests) {
      asked.push_back(round_of(requests[0]));
      for (std::size_t rank = 0; rank < requests.size(); ++rank) {
        bytes_sent[rank] += tidegate::bytes_sent(requests[rank], static_cast<int>(requests.size()));
      }
    });
    ++step_;
  }

  // The same with a thread per rank.
  void step_on_threads(Vectors& gradients) {
    run_ranks(static_cast<int>(compressors_.size()), [&](Engine& engine) {
      const auto rank = static_cast<std::size_t>(engine.place().rank);
      Exchange mine = exchange(rank, gradients[rank], 1.0f);
      while (mine.advance()) engine.wait(engine.start(mine.request()));
    });
    ++step_;
  }

  // What every step() asks for: as the row announces it, and as it is carried.
  std::vector<Round> announced() const {
    const int ranks = static_cast<int>(compressors_.size());
    return choice_.method->rounds({elements_of(layers_), ranks, layers_}, choice_);
  }
  std::vector<Round> rounds() const {
    return carried(announced(), static_cast<int>(compressors_.size()));
  }

  // The next steps are made at another level of the same method.
  void set_choice(const Choice& choice) { choice_ = choice; }

  // Another method comes next.
  void settle() {
    for (std::size_t rank = 0; rank < compressors_.size(); ++rank) {
      compressors_[rank]->settle(residuals[rank]);
    }
  }

  // The result of the last step could not be used.
  void restore() {
    for (std::size_t rank = 0; rank < compressors_.size(); ++rank) {
      compressors_[rank]->restore(residuals[rank]);
    }
  }

  Memory memory(std::size_t rank) const {
    Memory memory;
    compressors_[rank]->remember(layers_, memory);
    return memory;
  }
  void recall(std::size_t rank, const Memory& memory) {
    compressors_[rank]->recall(layers_, memory);
  }

  const Report& report(std::size_t rank) const { return compressors_[rank]->report(); }

  Vectors residuals;               // empty vectors for methods without error feedback
  std::vector<Round> asked;        // in the last step()
  std::vector<double> bytes_sent;  // by every rank in the last step()
  int bucket = 0;                  // its number

 private:
  Exchange exchange(std::size_t rank, Vector& gradient, float loss_scale) {
    const Bucket task{gradient, bucket, step_, loss_scale, layers_};
    return carry(compressors_[rank]->average(task, choice_, residuals[rank]), place(rank),
                 arrived_[rank]);
  }

  Place place(std::size_t rank) const {
    return {static_cast<int>(rank), static_cast<int>(compressors_.size())};
  }

  Choice choice_;
  const Layers layers_;
  std::vector<Buffer<std::byte>> arrived_;
  std::vector<std::unique_ptr<Workers>> workers_;  // one each: ranks may run at the same time
  std::vector<std::unique_ptr<Compressor>> compressors_;
  std::int64_t step_ = 0;
};

// Element by element: all of old + gradient that is not in the residual any more.
inline Vector sent_of(const Vector& old, const Vector& gradient, const Vector& residual) {
  Vector sent(gradient.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    sent[i] = (old[i] + gradient[i]) - residual[i];  // exact: what is left is small or all
  }
  return sent;
}

}  // namespace tidegate
