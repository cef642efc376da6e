// SPDX-License-Identifier: Apache-2.0
// A policy with options that a user wrote, asked step by step with records that may say anything:
// options become a policy or an Error{config}; whatever records say, every answer can be carried
// out. What it remembers, another one can recall.
//
//   byte 0  policy, a row of the table
//   byte 1  bits 0-1: ranks less one
//   then    options as KEY=VALUE, separated by commas, up to the end of the line
//   then    edits of eleven bytes: the rank whose record is changed, where in it (two bytes), and
//           the eight bytes that go there; after every fourth edit a step is taken
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/policies/ask.h"
#include "tidegate/policies/learned.h"

namespace {

using namespace tidegate;

constexpr std::size_t kEditBytes = 11;
constexpr std::size_t kEditsPerStep = 4;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "policy_decide: %s\n", what);
  std::abort();
}

Options options_of(const std::string& text) {
  Options options;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, end - at);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    options[pair.substr(0, equals)] = equals < pair.size() ? pair.substr(equals + 1) : "";
    at = end + 1;
  }
  return options;
}

Record plausible_record() {
  Record record;
  record.gradient_energy = 1;
  record.sent_energy = 0.5;
  record.residual_energy = 0.25;
  record.step_seconds = 0.05;
  record.compute_seconds = 0.03;
  record.training_seconds = 0.02;
  record.exchanging_seconds = 0.01;
  record.wire_seconds = 0.02;
  record.record_seconds = 0.001;
  record.bytes_sent = 1e5;
  record.compressed = 1;
  record.learning_rate = 0.1;
  record.buckets = 2;
  for (std::size_t bucket = 0; bucket < 2; ++bucket) {
    record.add_bucket(bucket, {.ready = 0.01, .compress = 1e-3, .wire = 0.01, .decode = 1e-3});
  }
  return record;
}

class Job {
 public:
  Job(Policy& policy, int ranks)
      : policy_(policy), learned_({ranks, ranks}), records_{.step = -1, .ranks = {}} {
    records_.ranks.assign(static_cast<std::size_t>(ranks), plausible_record());
    learned_.start_from(Network(ranks, Link{1.25e7, Seconds(0.002)}));
    for (const Layers& layers : layers_) {
      shapes_.push_back({elements_of(layers), ranks, layers});
    }
    for (const char* layer : {"a", "b", "c"}) window_.norms[layer] = 1;
  }

  void edit(std::span<const std::uint8_t, kEditBytes> bytes) {
    Record& record = records_.ranks[bytes[0] % records_.ranks.size()];
    const std::size_t place = (bytes[1] | bytes[2] << 8) % (sizeof(Record) - 7);
    std::memcpy(reinterpret_cast<std::byte*>(&record) + place, bytes.data() + 3, 8);
  }

  void step() {
    for (const Record& record : records_.ranks) check_record(record, 0);
    records_.step = at_;
    at_ += 2;
    learned_.learn(&records_);
    window_.number = at_ / 4;
    window_.steps = 4;
    const Situation now = learned_.situation({.step = at_,
                                              .ranks = static_cast<int>(records_.ranks.size()),
                                              .speeds = &speeds_,
                                              .buckets = shapes_,
                                              .window = &window_},
                                             &records_);
    begin_step(policy_, "fuzzed", now);
    for (std::size_t bucket = 0; bucket < layers_.size(); ++bucket) {
      const Decision decision = ask(policy_, "fuzzed",
                                    {.now = now,
                                     .bucket = static_cast<int>(bucket),
                                     .elements = shapes_[bucket].elements,
                                     .layers = layers_[bucket]});
      const Choice settled = learned_.settle(decision.choice, shapes_[bucket], nullptr);
      require(!settled.any_route, "a route that stays open");
      require(!settled.method->rounds(shapes_[bucket], settled).empty(), "nothing to send");
    }
    require(policy_.batches_per_step() >= 1, "a step without a batch");
    require(std::isfinite(policy_.rate_scale()) && policy_.rate_scale() > 0, "a rate of no use");
  }

 private:
  Policy& policy_;
  Learned learned_;
  Statistics records_;
  std::int64_t at_ = 0;
  const std::vector<Layers> layers_ = {{{"a", 6000, 60}}, {{"b", 4000, 40}, {"c", 100}}};
  std::vector<Shape> shapes_;
  CodecSpeeds speeds_;
  Window window_;
};

void run(std::span<const std::uint8_t> bytes) {
  const PolicyRow& row = policies()[bytes[0] % policies().size()];
  const int ranks = 1 + bytes[1] % 4;
  bytes = bytes.subspan(2);
  std::size_t end = 0;
  while (end < bytes.size() && bytes[end] != '\n') ++end;
  const std::string text(bytes.data(), bytes.data() + end);
  if (text.find('/') != std::string::npos) return;  // files of this machine are not the input
  const std::unique_ptr<Policy> policy = make_policy(row.name, options_of(text));

  Job job(*policy, ranks);
  bytes = bytes.subspan(std::min(end + 1, bytes.size()));
  for (std::size_t edits = 1; bytes.size() >= kEditBytes; ++edits) {
    job.edit(bytes.first<kEditBytes>());
    bytes = bytes.subspan(kEditBytes);
    if (edits % kEditsPerStep == 0) job.step();
  }
  job.step();

  const Notes notes = policy->remember();
  const std::unique_ptr<Policy> resumed = make_policy(row.name, options_of(text));
  resumed->recall(notes);
  require(resumed->remember() == notes, "recalling changes what is remembered");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  try {
    run({data, size});
  } catch (const Error& error) {
    // wire: a record that cannot be, which nobody is asked about.
    require(error.kind() == Fault::config || error.kind() == Fault::wire, error.what());
  }
  return 0;
}
