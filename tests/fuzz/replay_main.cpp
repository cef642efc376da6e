// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without a fuzzer: every corpus file, then mutations of them, always the same.
//
//   fuzz_wire_decode [--mutations N] [--seed N] [FILE | DIRECTORY]...
//
// An input that brings the target down is left in ./failing-input; replay it by naming that file.
#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// There only in a build with sanitizers, which do not end by a signal.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLongestInput = 1 << 16;

struct Options {
  std::uint64_t mutations = 20000;
  std::uint64_t seed = 1;
  std::vector<fs::path> paths;
};

Bytes current_input;

void save_current_input() {
  std::ofstream("failing-input", std::ios::binary)
      .write(reinterpret_cast<const char*>(current_input.data()),
             static_cast<std::streamsize>(current_input.size()));
  std::cerr << "the input that failed (" << current_input.size() << " bytes) is in failing-input\n";
}

// Opening a file in a signal handler is not allowed in general; this process is lost anyway.
void save_and_die(int signal) {
  std::signal(signal, SIG_DFL);
  save_current_input();
  std::raise(signal);
}

void save_input_on_failure() {
  if (__sanitizer_set_death_callback) {
    __sanitizer_set_death_callback(save_current_input);
  } else {
    std::signal(SIGSEGV, save_and_die);
    std::signal(SIGFPE, save_and_die);
  }
  std::signal(SIGABRT, save_and_die);
}

void run(Bytes input) {
  current_input = std::move(input);
  // A heap block of the exact size: reading past it is an error that the address sanitizer sees.
  current_input.shrink_to_fit();
  LLVMFuzzerTestOneInput(current_input.data(), current_input.size());
}

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::cerr << "cannot read " << path << '\n';
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

std::vector<Bytes> read_corpus(const std::vector<fs::path>& paths) {
  std::vector<fs::path> files;
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  // A directory has no order of its own, and mutations must be the same on every machine.
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read(file));
  return corpus;
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  Bytes mutate(const std::vector<Bytes>& corpus) {
    Bytes input = corpus[below(corpus.size())];
    for (auto edits = 1 + below(4); edits > 0; --edits) edit(input, corpus);
    if (input.size() > kLongestInput) input.resize(kLongestInput);
    return input;
  }

 private:
  void edit(Bytes& input, const std::vector<Bytes>& corpus) {
    switch (below(7)) {
      case 0: return flip_bit(input);
      case 1: return set_byte(input);
      case 2: return set_number(input);
      case 3: return input.resize(below(input.size() + 1));
      case 4: return erase(input);
      case 5: return insert(input, input);
      case 6: return insert(input, corpus[below(corpus.size())]);
    }
  }

  void flip_bit(Bytes& input) {
    if (!input.empty()) input[below(input.size())] ^= 1u << below(8);
  }

  void set_byte(Bytes& input) {
    if (!input.empty()) input[below(input.size())] = static_cast<std::uint8_t>(random_());
  }

  // Lengths and counts fail at their ends.
  void set_number(Bytes& input) {
    constexpr std::array<std::uint64_t, 8> kEnds = {
        0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~std::uint64_t{0}};
    const auto number = kEnds[below(kEnds.size())];
    const std::size_t width = std::size_t{1} << below(4);
    if (input.size() >= width) {
      std::memcpy(&input[below(input.size() - width + 1)], &number, width);
    }
  }

  void erase(Bytes& input) {
    const auto [first, last] = range(input);
    input.erase(input.begin() + first, input.begin() + last);
  }

  void insert(Bytes& input, const Bytes& from) {
    const auto [first, last] = range(from);
    const Bytes part(from.begin() + first, from.begin() + last);
    input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)), part.begin(),
                 part.end());
  }

  std::pair<std::ptrdiff_t, std::ptrdiff_t> range(const Bytes& bytes) {
    const auto first = below(bytes.size() + 1);
    const auto size = below(std::min<std::size_t>(64, bytes.size() - first) + 1);
    return {static_cast<std::ptrdiff_t>(first), static_cast<std::ptrdiff_t>(first + size)};
  }

  std::size_t below(std::size_t end) { return random_() % end; }

  std::mt19937_64 random_;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--mutations" && i + 1 < count) {
      options.mutations = std::stoull(arguments[++i]);
    } else if (argument == "--seed" && i + 1 < count) {
      options.seed = std::stoull(arguments[++i]);
    } else {
      options.paths.emplace_back(argument);
    }
  }
  return options;
}

}  // namespace

int main(int count, char** arguments) {
  const Options options = parse(count, arguments);
  auto corpus = read_corpus(options.paths);
  const auto files = corpus.size();
  save_input_on_failure();
  for (const auto& input : corpus) run(input);

  corpus.emplace_back();  // Mutations may also start from nothing.
  Mutator mutator(options.seed);
  for (std::uint64_t i = 0; i < options.mutations; ++i) run(mutator.mutate(corpus));
  std::cout << "ran " << files << " files and " << options.mutations << " mutations of them, seed "
            << options.seed << '\n';
}
