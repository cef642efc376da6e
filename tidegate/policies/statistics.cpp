// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/statistics.h"

#include <cmath>
#include <cstdint>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// More than any job has; a double knows every whole number up to these.
constexpr std::uint64_t kMostBuckets = 1'000'000'000;
constexpr std::uint64_t kMostEvents = 1'000'000'000'000;

}  // namespace

void check_record(const Record& record, int rank) {
  const auto refuse = [&](auto number, const char* what) {
    fail(Fault::wire, "the record of step ", record.step, " from rank ", rank, " says ", what,
         " = ", number, ", which cannot be; do all ranks run the same version?");
  };
  const auto check = [&](auto number, const char* what) {
    if (number < 0) refuse(number, what);
  };
  const auto check_finite = [&](double number, const char* what) {
    if (!(number >= 0 && std::isfinite(number))) refuse(number, what);
  };
  const auto check_share = [&](double number, const char* what) {
    if (!(number >= 0 && number <= 1)) refuse(number, what);
  };
  const auto check_count = [&](std::uint64_t number, std::uint64_t most, const char* what) {
    if (number > most) refuse(number, what);
  };
  const auto check_all = [&](const auto& numbers, const char* what) {
    for (const auto number : numbers) check(number, what);
  };
  check(record.gradient_energy, "gradient energy");
  check(record.sent_energy, "sent energy");
  check(record.residual_energy, "residual energy");
  check(record.weaker_energy, "weaker energy");
  check(record.step_seconds, "seconds of a step");
  check(record.compute_seconds, "seconds of computing");
  check_finite(record.training_seconds, "seconds of training");
  check_finite(record.exchanging_seconds, "seconds of exchanging");
  check(record.compress_seconds, "seconds of compressing");
  check(record.wire_seconds, "seconds on the wire");
  check(record.decode_seconds, "seconds of decoding");
  check(record.record_seconds, "seconds of records");
  check(record.bytes_sent, "bytes sent");
  check(record.learning_rate, "learning rate");
  check_share(record.low_rank_share, "share that low rank would carry");
  check_count(record.compressed, 1, "compressed");
  check_count(record.finite, 1, "finite");
  check_count(record.buckets, kMostBuckets, "buckets");
  check_count(record.rate_drops, kMostEvents, "drops of the learning rate");
  check_count(record.epochs, kMostEvents, "epochs");
  check_all(record.magnitudes.counts, "elements of a magnitude");
  check_all(record.magnitudes.energies, "energy of a magnitude");
  check_all(record.ready_seconds, "seconds until a bucket is ready");
  check_all(record.compress_slots, "seconds of compressing a bucket");
  check_all(record.wire_slots, "seconds of a bucket on the wire");
  check_all(record.decode_slots, "seconds of decoding a bucket");
  check_all(record.transfer_seconds, "seconds of a transfer");
}

}  // namespace tidegate
