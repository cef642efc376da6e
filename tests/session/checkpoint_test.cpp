// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "tests/expect_error.h"
#include "tests/session/job.h"

namespace tidegate::checkpoint_test {
namespace {

// One of everything.
State full_state() {
  State state;
  state.place = {1, 2};
  state.step = 7;
  state.layout = {{{"w", 4, 2}, {"b", 2}}, {{"head", 3}}};
  state.residuals = {{"b", {-0.0f, 0.25f}}, {"w", {1, 2, 3, 4}}};
  state.held_back = {{.layers = {"w", "b"},
                      .method = "topk",
                      .route = Route::owner,
                      .by_host = true,
                      .runs = {{1, 2}, {5, 1}},
                      .values = {1.5f, -2, 8}}};
  state.memories = {{"powersgd", {{"w", {0.5f, -0.5f}}}}, {State::kWindowSums, {{"b", {1, 2}}}}};
  state.policy = {{"sum", {0.1, -0.0, 1e300}}, {"none", {}}};
  state.progress = {{"epochs", {3}}};
  state.learned = {{"network", {1.0 / 3}}};
  Choice choice = make_choice("topk", 0.01, "owner", 8);
  choice.keep = kernels::Keep::exactly;
  choice.weaker = 0.1;
  choice.at_once = true;
  state.choices[0] = {.choice = choice, .reason = {}, .apart = {{{1}, make_choice("bf16")}}};
  state.agreed = Statistics{.step = 5, .ranks = std::vector<Record>(2)};
  for (Record& record : state.agreed->ranks) record.step = 5;
  state.agreed->ranks[1].gradient_energy = 0.1;
  state.agreed->ranks[1].magnitudes.counts[7] = 3;
  state.contributed.emplace();
  state.contributed->step = 6;
  state.contributed->transfer_seconds[2] = std::numeric_limits<float>::infinity();
  return state;
}

std::vector<std::byte> without(std::vector<std::byte> bytes, std::size_t last) {
  bytes.resize(bytes.size() - last);
  return bytes;
}

TEST(StateBytes, GivesBackWhatWasWritten) {
  const State state = full_state();
  const auto bytes = write_state(state);
  const State read = read_state(bytes);
  EXPECT_EQ(read.place.rank, 1);
  EXPECT_EQ(read.place.ranks, 2);
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.layout, state.layout);
  EXPECT_EQ(read.residuals, state.residuals);
  EXPECT_TRUE(std::signbit(read.residuals.at("b")[0]));
  EXPECT_EQ(read.held_back, state.held_back);
  EXPECT_EQ(read.memories, state.memories);
  EXPECT_EQ(read.policy, state.policy);
  EXPECT_EQ(read.progress, state.progress);
  EXPECT_EQ(read.learned, state.learned);
  EXPECT_EQ(read.choices.at(0).choice, state.choices.at(0).choice);
  EXPECT_EQ(read.choices.at(0).apart, state.choices.at(0).apart);
  EXPECT_EQ(std::memcmp(read.agreed->ranks.data(), state.agreed->ranks.data(), 2 * sizeof(Record)),
            0);
  EXPECT_EQ(std::memcmp(&*read.contributed, &*state.contributed, sizeof(Record)), 0);
  EXPECT_EQ(write_state(read), bytes);
}

TEST(StateBytes, EveryTruncationIsRefused) {
  const auto bytes = write_state(full_state());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_TRUE(fails(Fault::checkpoint, [&] {
      read_state(without(bytes, bytes.size() - length));
    })) << length;
  }
}

TEST(StateBytes, EveryFlippedBitIsRefused) {
  auto bytes = write_state(full_state());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::byte right = bytes[i];
    bytes[i] ^= std::byte{1} << (i % 8);
    EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(bytes); })) << i;
    bytes[i] = right;
  }
}

TEST(StateBytes, SaysWhatIsWrong) {
  const auto bytes = write_state(full_state());
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(without(bytes, 1)); }, {"was cut off"}));
  auto other = bytes;
  other.back() ^= std::byte{1};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(other); }, {"checksum"}));
  other[8] = std::byte{kCheckpointVersion + 1};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(other); }, {"version 2", "update"}));
  other[8] = std::byte{0};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(other); }, {"version 0", "wrote it"}));
  other[0] = std::byte{'X'};
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(other); }, {"no Tidegate state"}));
}

// Behind a right checksum: a program with a mistake, or with bad intentions.
TEST(StateBytes, NamesSectionAndLayerOfWhatIsDamaged) {
  State state = full_state();
  state.residuals["w"][2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(write_state(state)); },
                    {"residual of layer \"w\"", "NaN"}));
  state = full_state();
  state.held_back[0].runs[1].offset = 6;
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(write_state(state)); },
                    {"held back of layer \"w\"", "outside"}));
  state = full_state();
  state.layout[0][0].elements = 6;
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(write_state(state)); },
                    {"layer \"w\"", "bucket 0", "residual of 4"}));
  auto bytes = write_state(full_state());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t at = text.find("residuals") + 9 + 8 + 8;  // its first layer's name
  bytes[at + 8 + 1] = std::byte{0xff};                        // and its number of elements
  seal_state(bytes);
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { read_state(bytes); },
                    {"section \"residuals\"", "layer \"b\"", "bytes are left"}));
}

TEST(StateBytes, ReadsTheFilesOfVersion1) {
  std::ifstream file(std::string(TIDEGATE_TEST_DATA) + "/checkpoint_v1.bin", std::ios::binary);
  ASSERT_TRUE(file) << "the golden file is missing";
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto golden = std::as_bytes(std::span(text));
  const std::vector<std::byte> written = write_state(full_state());
  EXPECT_TRUE(std::ranges::equal(golden, written))
      << "what is written has changed: raise kCheckpointVersion, keep reading this file";
  EXPECT_EQ(write_state(read_state(golden)), written);
}

TEST(State, OfARunningJobIsTheSameAfterWritingAndReading) {
  Job job(2, fixed("topk", "0.1"));
  job.lay_out(0, {{"a", 40, 8}, {"b", 10}});
  for (std::uint64_t step = 0; step < 3; ++step) {
    Vectors gradients = make_gradients(2, 50, step);
    job.step(gradients);
  }
  const State state = job.at(1).state();
  EXPECT_EQ(state.layout, (std::vector<Layers>{{{"a", 40, 8}, {"b", 10}}}));
  EXPECT_EQ(write_state(read_state(write_state(state))), write_state(state));
}

TEST(State, IsRenamedAndDroppedByLayer) {
  State state = full_state();
  state.policy["regime of w"] = {1};
  state.policy["regime of the whole"] = {2};
  state.rename("w", "module.w");
  EXPECT_TRUE(state.policy.contains("regime of module.w") && !state.policy.contains("regime of w"));
  EXPECT_TRUE(state.policy.contains("regime of the whole"));
  check(state);
  EXPECT_TRUE(state.residuals.contains("module.w"));
  EXPECT_TRUE(state.memories.at("powersgd").contains("module.w"));
  EXPECT_EQ(state.layout[0][0].name, "module.w");
  EXPECT_EQ(state.held_back[0].layers[0], "module.w");
  EXPECT_TRUE(fails(Fault::checkpoint, [&] { state.rename("b", "module.w"); }, {"already"}));

  State folded = state;
  folded.fold();
  state.drop("module.w");
  check(state);
  EXPECT_TRUE(state.held_back.empty());
  EXPECT_FALSE(state.residuals.contains("module.w"));
  EXPECT_FALSE(state.policy.contains("regime of module.w"));
  EXPECT_EQ(state.residuals.at("b"), folded.residuals.at("b"));
  EXPECT_EQ(state.layout[0].size(), 1u);
}

TEST(HeldBack, ComesBackAsItWas) {
  const Layers part{{"a", 60}, {"b", 40}};
  const Choice choice = make_choice("topk", 0.1, "owner");
  std::vector<float> values(100);
  for (const std::size_t i : {0u, 3u, 4u, 40u, 41u, 99u}) values[i] = 1.0f + static_cast<float>(i);
  const HeldBack held = make_held_back(part, choice, values);
  EXPECT_EQ(held.runs, (std::vector<tidegate::Run>{{0, 5}, {40, 2}, {99, 1}}));
  EXPECT_EQ(held.spread_out(100), values);
  EXPECT_TRUE(held.held_by(part, choice));
  EXPECT_FALSE(held.held_by(part, make_choice("topk", 0.1)));
  EXPECT_TRUE(held.touches(Layers{{"b", 40}}));
  EXPECT_FALSE(held.touches(Layers{{"c", 40}}));
}

}  // namespace
}  // namespace tidegate::checkpoint_test
