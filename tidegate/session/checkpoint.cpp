// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/checkpoint.h"

#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "tidegate/base/error.h"
#include "tidegate/session/state_json.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tidegate {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr std::array<char, 8> kMagic = {'T', 'I', 'D', 'E', 'G', 'A', 'T', 'E'};

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kCheckpointVersion;
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;     // of all
  std::uint64_t checksum = 0;  // of everything before and after it
};
static_assert(sizeof(Header) == kCheckpointHeader);

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  const std::uint64_t seed = XXH3_64bits(bytes.data(), offsetof(Header, checksum));
  const auto rest = bytes.subspan(sizeof(Header));
  return XXH3_64bits_withSeed(rest.data(), rest.size(), seed);
}

// --- writing ---

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  void raw(const void* data, std::size_t size) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }
  void number(std::uint64_t value) { raw(&value, sizeof value); }
  void text(std::string_view value) {
    number(value.size());
    raw(value.data(), value.size());
  }
  void floats(std::span<const float> values) {
    number(values.size());
    raw(values.data(), values.size_bytes());
  }
  void memory(const Memory& memory) {
    number(memory.size());
    for (const auto& [layer, values] : memory) {
      text(layer);
      floats(values);
    }
  }
  void held(const HeldBack& held) {
    number(held.layers.size());
    for (const std::string& layer : held.layers) text(layer);
    text(held.method);
    text(name(held.route));
    number(held.by_host ? 1 : 0);
    number(held.runs.size());
    for (const Run& run : held.runs) {
      number(run.offset);
      number(run.elements);
    }
    floats(held.values);
  }

 private:
  std::vector<std::byte>& bytes_;
};

template <typename Write>
void section(std::vector<std::byte>& bytes, std::string_view name, const Write& write) {
  Writer writer(bytes);
  writer.text(name);
  const std::size_t at = bytes.size();
  writer.number(0);
  write(writer);
  const std::uint64_t size = bytes.size() - at - sizeof size;
  std::memcpy(bytes.data() + at, &size, sizeof size);
}

std::size_t floats_in(const State& state) {
  std::size_t count = 0;
  const auto add = [&](const Memory& memory) {
    for (const auto& [layer, values] : memory) count += values.size();
  };
  add(state.residuals);
  for (const auto& [method, memory] : state.memories) add(memory);
  for (const HeldBack& held : state.held_back) count += held.values.size();
  return count;
}

// --- reading ---

// Nothing is allocated before the bytes that it is for were seen to be there.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string where)
      : bytes_(bytes), where_(std::move(where)) {}

  template <typename... Parts>
  [[noreturn]] void damaged(const Parts&... what) const {
    fail(Fault::checkpoint, "the state is damaged in ", where_, ": ", what...,
         "; load another checkpoint");
  }
  void at(std::string where) { where_ = std::move(where); }
  bool done() const { return bytes_.empty(); }

  std::span<const std::byte> raw(std::uint64_t size) {
    if (size > bytes_.size()) {
      damaged(size, " bytes should follow where ", bytes_.size(), " are left");
    }
    const auto taken = bytes_.first(static_cast<std::size_t>(size));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::uint64_t number() {
    std::uint64_t value;
    std::memcpy(&value, raw(sizeof value).data(), sizeof value);
    return value;
  }
  // Of things that take at least so many bytes each.
  std::size_t count(std::size_t least) {
    const std::uint64_t value = number();
    if (value > bytes_.size() / least) {
      damaged(value, " entries should follow where ", bytes_.size(), " bytes are left");
    }
    return static_cast<std::size_t>(value);
  }
  std::string text() {
    const auto letters = raw(number());
    return {reinterpret_cast<const char*>(letters.data()), letters.size()};
  }
  std::string text_to_the_end() {
    const auto letters = raw(bytes_.size());
    return {reinterpret_cast<const char*>(letters.data()), letters.size()};
  }
  std::vector<float> floats() {
    std::vector<float> values(count(sizeof(float)));
    const auto bytes = raw(values.size() * sizeof(float));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  Memory memory() {
    Memory memory;
    const std::string section = where_;
    for (std::size_t left = count(16); left > 0; --left) {
      const std::string layer = text();
      where_ = concat(section, ", layer \"", layer, "\"");
      if (!memory.emplace(layer, floats()).second) damaged("it is there twice");
    }
    where_ = section;
    return memory;
  }
  HeldBack held() {
    HeldBack held;
    for (std::size_t left = count(8); left > 0; --left) held.layers.push_back(text());
    held.method = text();
    const std::string route = text();
    try {
      held.route = parse_route(route);
    } catch (const Error& error) {
      damaged(error.what());
    }
    held.by_host = number() != 0;
    for (std::size_t left = count(16); left > 0; --left) {
      const std::uint64_t offset = number();
      held.runs.push_back({offset, number()});
    }
    held.values = floats();
    return held;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string where_;
};

constexpr const char* kFacts = "facts";
constexpr const char* kResiduals = "residuals";
constexpr const char* kHeldBack = "held back";
constexpr const char* kMemories = "memories";

Reader open_section(Reader& all, const char* name) {
  all.at(concat("the head of section \"", name, "\""));
  const std::string found = all.text();
  if (found != name) all.damaged("there is a section \"", found, "\" in its place");
  return {all.raw(all.number()), concat("section \"", name, "\"")};
}

void close(const Reader& section) {
  if (!section.done()) section.damaged("bytes are left over at its end");
}

void check_header(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) {
    fail(Fault::checkpoint, "this is no Tidegate state: it has ", bytes.size(),
         " bytes, which is less than the head of one; a file that was cut off? Load another "
         "checkpoint");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) {
    fail(Fault::checkpoint,
         "this is no Tidegate state: it does not begin with \"TIDEGATE\"; name what "
         "write_state() or state_dict() gave");
  }
  if (header.version != kCheckpointVersion) {
    const bool newer = header.version > kCheckpointVersion;
    fail(Fault::checkpoint, "this is a state of format version ", header.version,
         ", and this Tidegate reads version ", kCheckpointVersion, "; ",
         newer ? "update Tidegate" : "use the Tidegate that wrote it");
  }
  if (header.bytes != bytes.size()) {
    fail(Fault::checkpoint, "the state should have ", header.bytes, " bytes and has ", bytes.size(),
         header.bytes > bytes.size() ? ": it was cut off" : ": something was added to it",
         "; load another checkpoint");
  }
  if (header.checksum != checksum_of(bytes)) {
    fail(Fault::checkpoint, "the checksum of the state is wrong: some of its ", bytes.size(),
         " bytes have changed since it was written; load another checkpoint");
  }
}

}  // namespace

std::vector<std::byte> write_state(const State& state) {
  std::vector<std::byte> bytes(sizeof(Header));
  const std::string facts = facts_of(state);
  bytes.reserve(sizeof(Header) + 4 * floats_in(state) + facts.size() + (std::size_t{1} << 16));
  section(bytes, kFacts, [&](Writer& out) { out.raw(facts.data(), facts.size()); });
  section(bytes, kResiduals, [&](Writer& out) { out.memory(state.residuals); });
  section(bytes, kHeldBack, [&](Writer& out) {
    out.number(state.held_back.size());
    for (const HeldBack& held : state.held_back) out.held(held);
  });
  section(bytes, kMemories, [&](Writer& out) {
    out.number(state.memories.size());
    for (const auto& [method, memory] : state.memories) {
      out.text(method);
      out.memory(memory);
    }
  });
  const Header header{.bytes = bytes.size()};
  std::memcpy(bytes.data(), &header, sizeof header);
  seal_state(bytes);
  return bytes;
}

State read_state(std::span<const std::byte> bytes) {
  check_header(bytes);
  Reader all(bytes.subspan(sizeof(Header)), "its sections");
  Reader facts = open_section(all, kFacts);
  State state = state_from_facts(facts.text_to_the_end());
  Reader residuals = open_section(all, kResiduals);
  state.residuals = residuals.memory();
  close(residuals);
  Reader held = open_section(all, kHeldBack);
  for (std::size_t left = held.count(48); left > 0; --left) state.held_back.push_back(held.held());
  close(held);
  Reader memories = open_section(all, kMemories);
  for (std::size_t left = memories.count(16); left > 0; --left) {
    const std::string method = memories.text();
    memories.at(concat("section \"", kMemories, "\", method \"", method, "\""));
    if (!state.memories.emplace(method, memories.memory()).second) {
      memories.damaged("it is there twice");
    }
  }
  close(memories);
  all.at("its end");
  close(all);
  check(state);
  return state;
}

void seal_state(std::span<std::byte> bytes) {
  const std::uint64_t checksum = checksum_of(bytes);
  std::memcpy(bytes.data() + offsetof(Header, checksum), &checksum, sizeof checksum);
}

}  // namespace tidegate
