// SPDX-License-Identifier: Apache-2.0
#include "tidegate/policies/trace_json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/expect_error.h"
#include "tidegate/base/random.h"

namespace tidegate::trace::trace_json_test {
namespace {

// Any bits that are a finite number, denormals and negative zero among them.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t bits() {
    std::uint64_t bits = 0;
    for (int i = 0; i < 4; ++i) {
      bits = bits << 16 | static_cast<std::uint64_t>(65536 * random_unit(seed_, next_++));
    }
    return bits;
  }
  template <typename Number, typename Bits>
  Number finite() {
    while (true) {
      const auto number = std::bit_cast<Number>(static_cast<Bits>(bits()));
      if (std::isfinite(number)) return number;
    }
  }
  double wide() { return finite<double, std::uint64_t>(); }
  float narrow() { return finite<float, std::uint32_t>(); }

 private:
  const std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

Record any_record(std::uint64_t seed) {
  Numbers numbers(seed);
  Record record;
  record.step = 7;
  for (double* each :
       {&record.gradient_energy, &record.sent_energy, &record.residual_energy,
        &record.weaker_energy, &record.overlap, &record.step_seconds, &record.compute_seconds,
        &record.training_seconds, &record.exchanging_seconds, &record.compress_seconds,
        &record.wire_seconds, &record.decode_seconds, &record.record_seconds, &record.bytes_sent,
        &record.learning_rate, &record.low_rank_share}) {
    *each = numbers.wide();
  }
  record.finite = 0;
  record.buckets = numbers.bits() >> 12;
  record.sketched = 1;
  for (auto* slots :
       {&record.ready_seconds, &record.compress_slots, &record.wire_slots, &record.decode_slots}) {
    for (float& each : *slots) each = numbers.narrow();
  }
  for (float& each : record.transfer_seconds) {
    each = numbers.bits() % 3 == 0 ? std::numeric_limits<float>::infinity() : numbers.narrow();
  }
  for (std::size_t bin = 0; bin < Histogram::kBins; bin += 2) {
    record.magnitudes.counts[bin] = numbers.narrow();
    record.magnitudes.energies[bin] = numbers.narrow();
  }
  for (auto* sketch : {&record.gradient_sketch, &record.residual_sketch}) {
    for (std::uint16_t& each : *sketch) each = static_cast<std::uint16_t>(numbers.bits());
  }
  return record;
}

Statistics there_and_back(const Statistics& statistics) {
  return statistics_from(Json::parse(to_json(statistics).dump()),
                         static_cast<int>(statistics.ranks.size()));
}

Json as_in_a_trace(const Statistics& statistics) {
  std::string line;
  write(statistics, line);
  return Json::parse(line);
}

TEST(TraceJson, RecordsComeBackBitForBit) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Statistics statistics{.step = 7, .ranks = {any_record(seed), Record{.step = 7}}};
    const Statistics again = there_and_back(statistics);
    ASSERT_EQ(again.step, 7);
    for (std::size_t rank : {0u, 1u}) {
      EXPECT_EQ(std::memcmp(&again.ranks[rank], &statistics.ranks[rank], sizeof(Record)), 0)
          << seed << ": " << to_json(statistics).dump() << "\n"
          << to_json(again).dump();
    }
    const Statistics traced = statistics_from(as_in_a_trace(statistics), 2);
    for (std::size_t rank : {0u, 1u}) {
      EXPECT_EQ(std::memcmp(&traced.ranks[rank], &statistics.ranks[rank], sizeof(Record)), 0)
          << as_in_a_trace(statistics).dump();
    }
  }
}

TEST(TraceJson, WhatIsNoNumberComesBackToo) {
  Statistics statistics{.step = 0, .ranks = {Record{}}};
  statistics.ranks[0].gradient_energy = std::nan("");
  statistics.ranks[0].sent_energy = -std::numeric_limits<double>::infinity();
  const Record again = there_and_back(statistics).ranks[0];
  EXPECT_TRUE(std::isnan(again.gradient_energy));
  EXPECT_EQ(again.sent_energy, -std::numeric_limits<double>::infinity());
}

TEST(TraceJson, ListsOfNumbersAreReadAndWrittenAsBits) {
  const Json old = Json::parse(R"({"step":0,"ranks":[{"wire_slots":[0.5,0.25],
      "transfers":["inf",1.5],"magnitudes":[[3,2,0.125]],"gradient_sketch":[7,65535]}]})");
  const Record record = statistics_from(old, 1).ranks[0];
  EXPECT_EQ(record.wire_slots[1], 0.25f);
  EXPECT_EQ(record.transfer_seconds[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(record.magnitudes.counts[3], 2);
  EXPECT_EQ(record.magnitudes.energies[3], 0.125f);
  EXPECT_EQ(record.gradient_sketch[1], 65535);
  const Json now = as_in_a_trace({.step = 0, .ranks = {record}})["ranks"][0];
  EXPECT_EQ(now["wire_slots"], "3f0000003e800000");
  EXPECT_EQ(now["transfers"], "7f8000003fc00000");
  EXPECT_EQ(now["magnitudes"], "03400000003e000000");
  EXPECT_EQ(now["gradient_sketch"], "0007ffff");
}

TEST(TraceJson, EveryMethodsChoicesComeBack) {
  for (const Method& method : methods()) {
    for (const Route route : method.routes) {
      for (const bool by_host : {false, true}) {
        Choice choice = make_choice(method.name, method.level == Level::ratio ? 1.0 / 3 : 2,
                                    concat(by_host ? "hosts+" : "", name(route)));
        choice.at_once = by_host;
        if (method.level == Level::ratio) choice.weaker = 0.7;
        EXPECT_EQ(choice_from(Json::parse(to_json(choice).dump())), choice) << describe(choice);
        choice.any_route = true;
        EXPECT_EQ(choice_from(Json::parse(to_json(choice).dump())), choice) << describe(choice);
      }
    }
  }
}

TEST(TraceJson, NumbersThatCannotBeAreRefused) {
  const auto with = [](const char* record) {
    return [record] {
      statistics_from(Json::parse(R"({"step":0,"ranks":[)" + std::string(record) + "]}"), 1);
    };
  };
  EXPECT_TRUE(fails(Fault::config, with(R"({"step_seconds":"inf"})"), {"step_seconds"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"wire_slots":[1e300]})"), {"wire_slots"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"buckets":-1})"), {"buckets"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"buckets":18446744073709551615})"), {"buckets"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"magnitudes":[[192,1,1]]})"), {"magnitudes"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"gradient_sketch":[65536]})"), {"gradient_sketch"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"wire_slots":"7f800000"})"), {"not finite"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"wire_slots":"7f80"})"), {"8 hexadecimal digits"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"wire_slots":"7f80000g"})"), {"8 hexadecimal digits"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"magnitudes":"c00000000000000000"})"), {"no bin 192"}));
  EXPECT_TRUE(fails(Fault::config, with(R"({"magnitudes":"03"})"), {"8 hexadecimal digits"}));
  const std::string long_text = R"({"transfers":")" + std::string(8 * 65, '0') + "\"}";
  EXPECT_TRUE(fails(Fault::config, with(long_text.c_str()), {"transfers", "more than 64"}));
  EXPECT_TRUE(fails(Fault::config, with("{},{}"), {"ranks"}));
}

}  // namespace
}  // namespace tidegate::trace::trace_json_test
