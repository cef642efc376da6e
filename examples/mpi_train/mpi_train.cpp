// SPDX-License-Identifier: Apache-2.0
// Trains a classifier on Fashion-MNIST with MPI and without Python, twice from the same weights:
// with dense gradients, and with Tidegate's choice of method. Ends with a table of both.
//
//   mpirun -n 4 mpi_train --method topk --ratio 0.01
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "classifier.h"
#include "fashion_mnist.h"
#include "tidegate/base/random.h"
#include "tidegate/mpi/engine.h"
#include "tidegate/session/session.h"

namespace {

using namespace tidegate;

constexpr std::size_t kWidths[] = {kPixels, 256, 128, kClasses};
constexpr float kMomentum = 0.9f;
constexpr std::size_t kTestImages = 10'000;
constexpr std::size_t kEvaluatedAtOnce = 250;  // images

// --- the command line ---

struct Arguments {
  Options policy = {{"method", "topk"}};  // of policy "fixed"
  std::size_t epochs = 3;
  std::size_t batch = 64;  // images per rank and step
  std::size_t steps = 0;   // at most; 0 = as many as the epochs have
  std::size_t train = std::numeric_limits<std::size_t>::max();  // images to train on, at most
  std::uint64_t seed = 0;
  float rate = 0.05f;
  std::string data;
  bool help = false;
};

constexpr const char* kHelp = R"(usage: mpirun -n RANKS mpi_train [options]

Trains a small neural network on Fashion-MNIST, every rank on its share of each batch, twice from
the same weights: first with dense gradients (fp32, MPI's all-reduce), then compressed. Compares
accuracy, time and bytes.

Examples:
  mpirun -n 4 mpi_train                                    1 % of each gradient, about a minute
  mpirun -n 4 mpi_train --ratio 0.1 --epochs 5             send more, train longer
  mpirun -n 4 mpi_train --method bf16 --route ring         half the bytes, nothing left out
  mpirun -n 2 mpi_train --steps 20 --train 2000            a quick look

options:
  --method NAME   topk, artopk-star, artopk-var, bf16, ... (topk)
  --ratio R       share of the gradient that is sent, for methods that select (0.01)
  --rank K        of the matrices that are sent, for methods that have one
  --route NAME    how it travels: allgather, engine, ring, tree, hosts, ... (the method's own)
  --bits B        per value that is sent, for methods that have a choice
  --warmup N      steps in which the ratio comes down to its value
  --epochs N      passes over the training images (3)
  --batch N       images per rank and step (64)
  --rate R        learning rate in the first half; then it falls to zero (0.05)
  --seed N        of the weights and of the order of images (0)
  --steps N       end each training after N steps at the latest
  --train N       train on the first N images only
  --data FOLDER   where the files of Fashion-MNIST are
  --help          show this text

More ranks than cores? Add --oversubscribe to mpirun (Open MPI).
)";

template <typename Number>
Number parse(const std::string& flag, const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end) {
    fail(Fault::config, flag, " ", text, ": not a number; see mpi_train --help");
  }
  return value;
}

std::size_t parse_positive(const std::string& flag, const std::string& text) {
  const auto value = parse<std::size_t>(flag, text);
  if (value == 0) fail(Fault::config, flag, " 0: must be at least 1");
  return value;
}

bool is_policy_option(const std::string& flag) {
  constexpr const char* kOptions[] = {"--method", "--ratio", "--rank",
                                      "--route",  "--bits",  "--warmup"};
  return std::ranges::find(kOptions, flag) != std::end(kOptions);
}

void set(Arguments& arguments, const std::string& flag, const std::string& value) {
  if (is_policy_option(flag)) {
    arguments.policy[flag.substr(2)] = value;
  } else if (flag == "--epochs") {
    arguments.epochs = parse_positive(flag, value);
  } else if (flag == "--batch") {
    arguments.batch = parse_positive(flag, value);
  } else if (flag == "--steps") {
    arguments.steps = parse_positive(flag, value);
  } else if (flag == "--train") {
    arguments.train = parse_positive(flag, value);
  } else if (flag == "--seed") {
    arguments.seed = parse<std::uint64_t>(flag, value);
  } else if (flag == "--rate") {
    arguments.rate = parse<float>(flag, value);
  } else if (flag == "--data") {
    arguments.data = value;
  } else {
    fail(Fault::config, "unknown option ", flag, "; see mpi_train --help");
  }
}

Arguments parse_arguments(std::span<char* const> words) {
  Arguments arguments;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::string flag = words[i];
    if (flag == "--help" || flag == "-h") {
      arguments.help = true;
      return arguments;
    }
    if (i + 1 == words.size()) {
      fail(Fault::config, flag, " comes without a value; see mpi_train --help");
    }
    set(arguments, flag, words[i + 1]);
  }
  const std::string& method = arguments.policy["method"];
  if (method == "artopk" || find_method(method).level == Level::ratio) {
    arguments.policy.try_emplace("ratio", "0.01");
  }
  make_policy("fixed", arguments.policy);  // finds what is wrong with it before the work begins
  return arguments;
}

// --- what every rank has ---

struct Task {
  Arguments arguments;
  Images train;
  Images test;
  std::size_t steps_per_epoch = 0;
  std::size_t steps = 0;
};

Task prepare(const Arguments& arguments, int ranks) {
  Task task{.arguments = arguments,
            .train = load_fashion_mnist("train", arguments.data, arguments.train),
            .test = load_fashion_mnist("t10k", arguments.data, kTestImages)};
  task.steps_per_epoch = task.train.size() / (arguments.batch * static_cast<std::size_t>(ranks));
  if (task.steps_per_epoch == 0) {
    fail(Fault::config, task.train.size(), " images are not one batch of ", arguments.batch,
         " for each of ", ranks, " ranks; choose a smaller --batch");
  }
  task.steps = task.steps_per_epoch * arguments.epochs;
  if (arguments.steps > 0) task.steps = std::min(task.steps, arguments.steps);
  return task;
}

// The order in which an epoch shows the images, the same on all ranks: each takes its share of it.
std::vector<std::size_t> shuffled(std::size_t images, std::uint64_t seed) {
  std::vector<std::size_t> order(images);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = 0; i + 1 < images; ++i) {
    std::swap(order[i], order[i + random_bits(seed, i) % (images - i)]);
  }
  return order;
}

struct Batch {
  std::vector<float> images;
  std::vector<std::uint8_t> labels;

  void fill(const Images& from, std::span<const std::size_t> chosen) {
    images.resize(chosen.size() * kPixels);
    labels.resize(chosen.size());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      from.normalise(chosen[i], std::span(images).subspan(i * kPixels, kPixels));
      labels[i] = from.labels[chosen[i]];
    }
  }
};

// --- ranks among each other ---

double sum_over_ranks(Engine& engine, double value) {
  auto sum = static_cast<float>(value);
  engine.wait(engine.start(AllReduce{std::as_writable_bytes(std::span(&sum, 1))}));
  return sum;
}

void barrier(Engine& engine) { sum_over_ranks(engine, 0); }

template <typename T>
std::vector<T> gather(Engine& engine, const T& mine) {
  std::vector<T> all(static_cast<std::size_t>(engine.place().ranks));
  engine.wait(engine.start(
      AllGather{std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all))}));
  return all;
}

void check_equal_on_all_ranks(Engine& engine, std::uint64_t hash) {
  const std::vector<std::uint64_t> hashes = gather(engine, hash);
  const auto other = std::ranges::find_if(hashes, [&](auto each) { return each != hashes[0]; });
  if (other == hashes.end()) return;
  fail(Fault::peer, "rank ", other - hashes.begin(), " has ended with other parameters than rank 0",
       "; please report this with the command that led to it");
}

// --- training ---

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// On standard error, by rank 0: one line that changes on a terminal, else one every few seconds.
class Progress {
 public:
  Progress(std::string run, std::size_t steps, bool shown)
      : run_(std::move(run)), steps_(steps), shown_(shown) {}

  void show(std::size_t step, float loss) {
    const bool last = step == steps_;
    if (!shown_ || (!last && seconds_since(told_) < (live_ ? 0.1 : 5.0))) return;
    told_ = Clock::now();
    // On a terminal: from the start of the line, and what was longer before is cleared.
    std::fprintf(stderr, "%s%s: step %zu of %zu, loss %.3f%s%s", live_ ? "\r" : "", run_.c_str(),
                 step, steps_, static_cast<double>(loss), live_ ? "\033[K" : "",
                 live_ && !last ? "" : "\n");
  }

 private:
  const std::string run_;
  const std::size_t steps_;
  const bool shown_;
  const bool live_ = isatty(STDERR_FILENO) != 0;
  Clock::time_point told_ = Clock::now();
};

struct Outcome {
  std::string name;
  double accuracy = 0;
  double seconds = 0;           // of training
  double exchange_seconds = 0;  // of these, until the mean of the gradients was there
  double bytes_sent = 0;
  std::uint64_t hash = 0;
};

// One bucket per layer: while one is on its way, the next one is compressed.
void lay_out(Session& session, std::span<const Linear> layers) {
  int bucket = 0;
  for (std::size_t i = layers.size(); i-- > 0; ++bucket) {  // as the gradients become ready
    const Linear& layer = layers[i];
    session.lay_out(bucket, {{layer.name + " weights", layer.weights(), layer.inputs},
                             {layer.name + " biases", layer.outputs}});
  }
}

double evaluate(Engine& engine, Classifier& model, const Images& test) {
  const auto [rank, ranks] = engine.place();
  std::vector<std::size_t> share;
  for (auto i = static_cast<std::size_t>(rank); i < test.size();
       i += static_cast<std::size_t>(ranks)) {
    share.push_back(i);
  }
  Batch batch;
  std::size_t right = 0;
  for (std::size_t begin = 0; begin < share.size(); begin += kEvaluatedAtOnce) {
    const std::size_t count = std::min(kEvaluatedAtOnce, share.size() - begin);
    batch.fill(test, std::span(share).subspan(begin, count));
    right += model.count_right(batch.images, batch.labels);
  }
  return sum_over_ranks(engine, static_cast<double>(right)) / static_cast<double>(test.size());
}

Outcome train(Engine& engine, const Task& task, const Options& options) {
  const auto [rank, ranks] = engine.place();
  const Arguments& arguments = task.arguments;
  Classifier model(kWidths, arguments.seed);
  Settings settings{.options = options};
  for (int r = 0; r < ranks; ++r) settings.hosts.push_back(engine.topology().leader(r));
  Session session(engine.place(), settings);
  lay_out(session, model.layers());

  Progress progress(options.at("method"), task.steps, rank == 0);
  std::vector<std::size_t> order;
  Batch batch;
  barrier(engine);
  const auto began = Clock::now();
  for (std::size_t step = 0; step < task.steps; ++step) {
    const std::size_t in_epoch = step % task.steps_per_epoch;
    if (in_epoch == 0) {
      order = shuffled(task.train.size(), arguments.seed + step / task.steps_per_epoch);
    }
    const std::size_t turn =
        in_epoch * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(rank);
    batch.fill(task.train, std::span(order).subspan(turn * arguments.batch, arguments.batch));

    const float loss = model.train(batch.images, batch.labels, [&](Linear& layer) {
      session.submit({.data = std::as_writable_bytes(std::span(layer.gradient)),
                      .last = &layer == &model.layers().front()});
    });
    session.run(engine);  // now every gradient is the mean over ranks
    const float left = 1 - static_cast<float>(step) / static_cast<float>(task.steps);
    model.update(arguments.rate * std::min(1.0f, 2 * left), kMomentum);
    progress.show(step + 1, loss);
  }
  barrier(engine);
  Outcome outcome{.name = session.choices().begin()->first,
                  .seconds = seconds_since(began),
                  .exchange_seconds = session.totals().exchange_seconds,
                  .bytes_sent = session.totals().bytes_sent,
                  .hash = model.hash()};
  check_equal_on_all_ranks(engine, outcome.hash);
  outcome.accuracy = evaluate(engine, model, task.test);
  return outcome;
}

void print_table(const std::vector<Outcome>& outcomes, const Task& task, int ranks) {
  std::printf("\n%zu steps of %zu images on each of %d ranks\n\n", task.steps, task.arguments.batch,
              ranks);
  std::printf("%-40s %9s %8s %13s %17s %14s\n", "gradients", "accuracy", "seconds", "in exchanges",
              "MB sent per rank", "against dense");
  for (const Outcome& outcome : outcomes) {
    std::printf("%-40s %7.2f %% %8.1f %13.1f %17.2f", outcome.name.c_str(), 100 * outcome.accuracy,
                outcome.seconds, outcome.exchange_seconds, outcome.bytes_sent / 1e6);
    if (outcome.bytes_sent > 0) {
      std::printf(" %13.1fx", outcomes[0].bytes_sent / outcome.bytes_sent);
    }
    std::printf("\n");
  }
  std::printf("\nIn both trainings all ranks ended with the same parameters (hashes");
  for (const Outcome& outcome : outcomes) {
    std::printf(" %016llx", static_cast<unsigned long long>(outcome.hash));
  }
  std::printf(").\n");
}

void compare(Engine& engine, const Task& task) {
  std::vector<Outcome> outcomes;
  for (const Options& options : {Options{{"method", "dense"}}, task.arguments.policy}) {
    outcomes.push_back(train(engine, task, options));
  }
  if (engine.place().rank == 0) print_table(outcomes, task, engine.place().ranks);
}

void complain(int rank, const Error& error) {
  std::fprintf(stderr, "mpi_train: rank %d: %s\n", rank, error.what());
}

}  // namespace

int main(int argc, char** argv) {
  MpiRuntime runtime(argc, argv);
  MpiEngine engine(MPI_COMM_WORLD, find_hosts(MPI_COMM_WORLD));
  const auto [rank, ranks] = engine.place();

  // What can go wrong before ranks depend on each other: the lowest one that fails tells why.
  std::optional<Error> trouble;
  Task task;
  try {
    const Arguments arguments =
        parse_arguments(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
    if (arguments.help) {
      if (rank == 0) std::fputs(kHelp, stdout);
      return 0;
    }
    task = prepare(arguments, ranks);
  } catch (const Error& error) {
    trouble = error;
  }
  const std::vector<char> failed = gather(engine, static_cast<char>(trouble.has_value()));
  const auto first = std::ranges::find(failed, 1);
  if (first != failed.end()) {
    if (first - failed.begin() == rank) complain(rank, *trouble);
    return 2;
  }

  try {
    compare(engine, task);
  } catch (const Error& error) {
    complain(rank, error);
    MpiRuntime::abort(1);
  }
  return 0;
}
