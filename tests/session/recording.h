// SPDX-License-Identifier: Apache-2.0
// A recorded run whose policy writes down every bit that it sees.
#pragma once

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/session/job.h"
#include "tidegate/policies/trace_json.h"
#include "tidegate/policies/trace_reader.h"
#include "tidegate/session/modelled.h"
#include "tidegate/session/trace_file.h"

namespace tidegate {

// Everything a policy can see, as text.
inline std::string seen(const Situation& now) {
  std::ostringstream text;
  text << now.step << " of " << now.ranks << " ranks, depth " << now.depth << " changes "
       << now.network_changes << (now.fresh ? " fresh" : "");
  if (now.statistics) text << trace::to_json(*now.statistics);
  if (now.network) text << trace::to_json(*now.network);
  if (now.window) text << trace::to_json(*now.window);
  if (now.speeds) text << trace::to_json(*now.speeds);
  for (const Shape& shape : now.buckets) {
    text << shape.elements << "/" << shape.ranks << trace::to_json(shape.layers);
  }
  if (now.times) {
    text.precision(17);
    text << now.times->compute().count();
    for (const JobTimes::Slot& slot : now.times->slots()) {
      text << " " << slot.ready.count() << " " << slot.compress.count() << " " << slot.wire.count()
           << " " << slot.decode.count();
    }
  }
  return text.str();
}

// Looks at everything, and lets choices depend on it in ways that a lost bit would change.
class Curious : public Policy {
 public:
  explicit Curious(std::vector<std::string>& log) : log_(log) {}

  Needs needs() const override {
    return {.reacts = true, .speeds = true, .magnitudes = true, .window = 3};
  }
  void begin_step(const Situation& now) override {
    log_.push_back(seen(now));
    if (now.statistics) sum_ += now.statistics->ranks[0].gradient_energy;
  }
  Decision decide(const Question& question) override {
    std::ostringstream text;
    text << question.bucket << " " << question.elements << trace::to_json(question.layers);
    log_.push_back(text.str());
    if (!question.now.statistics) return {make_choice("dense"), "nothing is known"};
    const double digits = sum_ * 1e6 - std::floor(sum_ * 1e6);
    return {make_choice("topk", 0.01 + 0.5 * digits), "by the last digits of what it saw"};
  }
  int batches_per_step() const override { return 1 + static_cast<int>(sum_) % 3; }
  Notes remember() const override { return {{"sum", {sum_}}}; }
  void recall(const Notes& notes) override { sum_ = notes.at("sum").at(0); }

 private:
  std::vector<std::string>& log_;
  double sum_ = 0;
};

struct Recording {
  std::ostringstream lines;
  std::vector<std::string> seen;
  std::vector<std::string> done;  // with the buckets of a step, by step
};

inline std::string in_words(const Choice& choice, std::size_t elements) {
  return concat(elements, " elements: ", describe(choice), "; ");
}

// A job of two ranks in modelled time whose buckets change after the first step, as DDP's do.
// `writing` = what a line of the trace takes, in this time.
inline void record(Recording& recording, int steps, TraceFile* file = nullptr,
                   Seconds writing = Seconds(0)) {
  const auto clock = std::make_shared<ModelledClock>();
  std::vector<std::string> of_rank_1;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<Session*> all;
  for (int rank = 0; rank < 2; ++rank) {
    Settings settings{.policy = "curious"};
    settings.make_policy = [&, rank] {
      return std::make_unique<Curious>(rank == 0 ? recording.seen : of_rank_1);
    };
    if (rank == 0) {
      settings.trace = [&, file, clock, writing](std::string_view line) {
        recording.lines << line << '\n';
        clock->advance(writing);
        if (file) file->write(line);
      };
      if (file) settings.turn_trace_over = [file] { return file->turn_over(); };
    }
    ModelledClock::give(clock, settings);
    sessions.push_back(std::make_unique<Session>(Place{rank, 2}, settings));
    all.push_back(sessions.back().get());
  }
  const Network network(2, {1e6, Seconds(1e-3)});
  for (Session* session : all) {
    session->start_from(network);
    session->set_speeds(
        {{"topk 0.01 in 16 bits by allgather",
          CodecSpeed(Route::all_gather, CodecSpeed::Figures{1e-9, 2e-9, 3e-9, 4e-9})}});
  }
  ModelledJob job(all, clock);
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 2) {
      for (Session* session : all) session->load(session->state());
    }
    if (step % 7 == 3) {
      for (Session* session : all) session->end_epoch();
    }
    std::vector<Vectors> buckets{make_gradients(2, 900, static_cast<std::uint64_t>(step))};
    if (step > 0) buckets.push_back(make_gradients(2, 70, static_cast<std::uint64_t>(step + 99)));
    if (step == 0 || step == 1) {
      for (Session* session : all) {
        for (std::size_t b = 0; b < buckets.size(); ++b) {
          session->lay_out(static_cast<int>(b), {{concat("weight ", b, " of ", buckets.size()),
                                                  buckets[b][0].size(), 10}});
        }
      }
    }
    const std::vector<Seconds> ready(buckets.size(), Seconds(0.01));
    const auto when = job.begin_step(ready);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t rank = 0; rank < 2; ++rank) {
        all[rank]->submit({.data = bytes_in(buckets[b][rank]),
                           .last = b + 1 == buckets.size(),
                           .ready = when[b]});
      }
    }
    job.finish_step(network, Seconds(0.02));
    std::string& done = recording.done.emplace_back();
    for (const BucketFigures& bucket : sessions[0]->last_step().buckets) {
      done += in_words(bucket.choice, bucket.elements);
    }
  }
  sessions[0]->note_end();
  EXPECT_EQ(recording.seen, of_rank_1);
}

inline TraceReader reader(const std::string& text) {
  return TraceReader(std::make_unique<std::istringstream>(text), "trace.jsonl");
}

}  // namespace tidegate
