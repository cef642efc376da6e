// SPDX-License-Identifier: Apache-2.0
#include "tidegate/sim/synthetic.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "tidegate/base/error.h"
#include "tidegate/base/random.h"
#include "tidegate/comm/routes.h"
#include "tidegate/network/step_time.h"
#include "tidegate/policies/agreed_records.h"
#include "tidegate/policies/ask.h"
#include "tidegate/policies/learned.h"

namespace tidegate {
namespace {

constexpr double kForward = 1.0 / 3;  // of the computation of a step
constexpr int kMostRanks = 1 << 17;

enum Stream : std::uint64_t { kTransferNoise = 101, kEnergyNoise, kRanks };

const SyntheticJob& checked(const SyntheticJob& job) {
  if (job.ranks < 1 || job.ranks > kMostRanks) {
    fail(Fault::config, job.ranks, " ranks: must be between 1 and ", kMostRanks);
  }
  if (job.steps < 1) fail(Fault::config, job.steps, " steps: there must be at least one");
  if (job.depth < 1) {
    fail(Fault::config, "depth ", job.depth, ": at least one bucket must be in flight");
  }
  if (job.buckets.empty() || std::ranges::find(job.buckets, 0u) != job.buckets.end()) {
    fail(Fault::config, "a synthetic job needs buckets, and each at least one element");
  }
  if (!(job.transfer_noise >= 0 && job.transfer_noise <= 1)) {
    fail(Fault::config, "noise of transfers ", job.transfer_noise, ": must be between 0 and 1");
  }
  check(job.computing);
  check(job.gradient);
  return job;
}

// As square as it gets, and what is left.
Layers layers_of(std::size_t elements) {
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(elements)));
  Layers layers{{"matrix", elements / rows * rows, rows}};
  if (elements % rows != 0) layers.push_back({"rest", elements % rows, 0});
  return layers;
}

// A round of a choice, counted once as long as the choice stays.
struct PlannedRound {
  Cost cost;                   // of all that it is carried by
  std::vector<Round> carried;  // what an engine sees of it
};

struct SyntheticBucket {
  Layers layers;
  double ready = 1;  // share of the computation after which it is
  std::optional<Choice> present;
  std::vector<PlannedRound> rounds;
  double bytes_sent = 0;
  CodecSeconds codec;
  Seconds wire{0};  // of its rounds in this step
  Backlog backlog;

  Shape shape(int ranks) const { return {elements_of(layers), ranks, layers}; }
};

class Simulation {
 public:
  Simulation(const SyntheticJob& job, Policy& policy)
      : job_(checked(job)),
        policy_(policy),
        ranks_(job.computing, job.ranks, random_bits(job.seed, kRanks)),
        records_(policy.needs().reacts,
                 policy.needs().reacts ? kLongestUrgentPeriod : kLongestPeriod),
        learned_(job.ranks),
        depth_(job.depth) {
    const double elements =
        std::accumulate(job.buckets.begin(), job.buckets.end(), 0.0,
                        [](double sum, std::size_t n) { return sum + static_cast<double>(n); });
    double so_far = 0;
    for (const std::size_t bucket : job.buckets) {
      so_far += static_cast<double>(bucket);
      buckets_.push_back(
          {.layers = layers_of(bucket), .ready = kForward + (1 - kForward) * so_far / elements});
    }
    // A job whose policy reacts has measured the network before its first step.
    if (policy.needs().reacts) learned_.start_from(Network(job.ranks, job.links.at(0)));
  }

  void step(std::int64_t step) {
    agreed_ = records_.begin_step(step);
    for (const NetworkChange& change : learned_.learn(agreed_)) {
      outcome_.changes.push_back({step, describe(change)});
    }
    std::vector<double> computing = ranks_.compute(step);
    const Seconds slowest(*std::ranges::max_element(computing));

    std::vector<BucketTiming> timings;
    if (std::exchange(record_on_its_way_, false)) timings.push_back(send_records(step));
    Record record{.step = step, .record_seconds = last_record_seconds_};
    record.buckets = buckets_.size();
    decide(step);
    searched_elements_ = searched_energy_ = 0;
    const double energy = energy_at(job_.gradient, step, random_bits(job_.seed, kEnergyNoise));
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      timings.push_back(send(step, i, slowest));
      account(buckets_[i], energy, record);
    }
    if (priced_well(step)) ++outcome_.steps_priced_well;
    const StepTime time = model_step(timings, {.step = slowest}, depth_);
    record.wire_seconds = time.wire.count();
    if (records_.due(step) || policy_.asks_for_record()) {
      contribute(std::move(record), computing, slowest.count());
    }
    outcome_.step_seconds.push_back(time.total.count());
    computed_before_ = std::move(computing);
  }

  SyntheticOutcome finish() {
    double waiting = 0;
    bool known = true;
    for (const SyntheticBucket& bucket : buckets_) {
      waiting += bucket.backlog.waiting();
      known = known && bucket.backlog.known();
    }
    if (known) outcome_.backlog = waiting / last_gradient_energy_;
    if (learned_.network().known()) {
      outcome_.network = describe(learned_.network().network().link());
    }
    return std::move(outcome_);
  }

 private:
  void decide(std::int64_t step) {
    std::set<std::string> used;
    bool other_choices = false;
    std::vector<Shape> shapes;
    for (const SyntheticBucket& bucket : buckets_) shapes.push_back(bucket.shape(job_.ranks));
    const Situation now = learned_.situation(
        {.step = step, .ranks = job_.ranks, .buckets = shapes, .depth = job_.depth}, agreed_);
    begin_step(policy_, job_.policy, now);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      SyntheticBucket& bucket = buckets_[i];
      const int index = static_cast<int>(i);
      Decision decision =
          ask(policy_, job_.policy,
              {.now = now, .bucket = index, .elements = job_.buckets[i], .layers = bucket.layers});
      if (decision.choice.by_host) {
        fail(Fault::unsupported, "synthetic ranks have a host each; choose a route without hosts");
      }
      const Choice* present = bucket.present ? &*bucket.present : nullptr;
      const Choice choice = learned_.settle(decision.choice, bucket.shape(job_.ranks), present);
      if (bucket.present != choice) {
        plan(bucket, choice);
        other_choices = true;
        outcome_.decisions.push_back({step, index, describe(choice), std::move(decision.reason)});
      }
      used.insert(describe(choice));
    }
    for (const std::string& choice : used) ++outcome_.choices[choice];
    if (now.fresh || other_choices) choose_depth();
  }

  // As a session does, but for a step that goes by new choices, which a session begins by the depth
  // of the old ones.
  void choose_depth() {
    std::vector<std::vector<Round>> rounds;
    for (const SyntheticBucket& bucket : buckets_) {
      rounds.push_back(exchange_rounds(bucket.shape(job_.ranks), *bucket.present));
    }
    depth_ = learned_.depth(rounds, job_.depth);
  }

  void plan(SyntheticBucket& bucket, const Choice& choice) {
    bucket.present = choice;
    bucket.rounds.clear();
    bucket.bytes_sent = 0;
    for (const Round& round : choice.method->rounds(bucket.shape(job_.ranks), choice)) {
      bucket.rounds.push_back({cost(round, job_.ranks), carried({round}, job_.ranks)});
      bucket.bytes_sent += bytes_sent(round, job_.ranks);
    }
    bucket.codec =
        job_.codec ? job_.codec(choice, elements_of(bucket.layers), job_.ranks) : CodecSeconds{};
  }

  // What a round takes on the link of this step, and what everybody will hear about it.
  Price transfer(std::int64_t step, Ticket ticket, const PlannedRound& round) {
    const auto place = static_cast<std::uint64_t>(step) * (buckets_.size() + 1) +
                       static_cast<std::uint64_t>(ticket.bucket + 1);
    constexpr std::uint64_t kMostRounds = 64;
    const double noise =
        std::exp(job_.transfer_noise *
                 random_normal(random_bits(job_.seed, kTransferNoise),
                               place * kMostRounds + static_cast<std::uint64_t>(ticket.round)));
    const Link& link = job_.links.at(step);
    for (const Round& part : round.carried) {
      const Seconds took = noise * price(cost(part, job_.ranks), Fit{link}).total();
      learned_.transfers().note(step, ticket, part, took.count());
    }
    const Price took = price(round.cost, Fit{link});
    return {.waiting = noise * took.waiting, .sending = noise * took.sending};
  }

  bool priced_well(std::int64_t step) const {
    if (!learned_.network().known()) return false;
    Seconds truth{0};
    Seconds learned{0};
    for (const SyntheticBucket& bucket : buckets_) {
      for (const PlannedRound& round : bucket.rounds) {
        const Fit& fit = learned_.network().network().fit(round.carried.front().collective);
        truth += price(round.cost, Fit{job_.links.at(step)}).total();
        learned += price(round.cost, fit).total();
      }
    }
    return std::abs((learned - truth).count()) <= kAboutRight * truth.count();
  }

  // Behind the forward pass of the step after theirs.
  BucketTiming send_records(std::int64_t step) {
    const Round round = records_round();
    const Price took = transfer(step, {kStatisticsBucket, 1}, {cost(round, job_.ranks), {round}});
    last_record_seconds_ = took.total().count();
    ++outcome_.record_rounds;
    outcome_.record_seconds += last_record_seconds_;
    outcome_.record_bytes += bytes_sent(round, job_.ranks);
    return {.rounds = {took}};
  }

  BucketTiming send(std::int64_t step, std::size_t index, Seconds slowest) {
    SyntheticBucket& bucket = buckets_[index];
    bucket.wire = Seconds(0);
    BucketTiming timing{.ready = slowest * bucket.ready,
                        .compress = bucket.codec.compress,
                        .decode = bucket.codec.decode};
    for (std::size_t round = 0; round < bucket.rounds.size(); ++round) {
      const Ticket ticket{static_cast<int>(index), static_cast<int>(round + 1)};
      timing.rounds.push_back(transfer(step, ticket, bucket.rounds[round]));
      bucket.wire += timing.rounds.back().total();
    }
    return timing;
  }

  // Of a rank in the middle, as a session sums it up.
  void account(SyntheticBucket& bucket, double energy, Record& record) {
    const auto elements = static_cast<double>(elements_of(bucket.layers));
    const Method& method = *bucket.present->method;
    const double incoming = energy * elements;
    const double before = bucket.backlog.waiting();
    record.gradient_energy += incoming;
    if (bucket.present->weaker > 0) {
      Choice weaker = *bucket.present;
      weaker.ratio = weaker.weaker;
      record.weaker_energy += synthetic_gain(weaker).value_or(1.0) * (incoming + before);
    }
    record.sent_energy += bucket.backlog.exchange(incoming, *bucket.present);
    record.residual_energy += bucket.backlog.waiting();
    record.bytes_sent += bucket.bytes_sent;
    record.compress_seconds += bucket.codec.compress.count();
    record.decode_seconds += bucket.codec.decode.count();
    if (method.error_feedback) record.compressed = 1;
    if ((method.level == Level::ratio && method.error_feedback) || policy_.needs().magnitudes) {
      searched_elements_ += elements;
      searched_energy_ += incoming + before;
    }
    outcome_.bytes_sent += bucket.bytes_sent;
    const Round dense{Collective::all_reduce, 4 * elements_of(bucket.layers), Route::engine};
    outcome_.dense_bytes += bytes_sent(dense, job_.ranks);
    last_gradient_energy_ = record.gradient_energy;
  }

  // Every rank's record of this step, out of one and what differs between ranks.
  void contribute(Record middle, const std::vector<double>& computing, double slowest) {
    middle.magnitudes = synthetic_magnitudes(searched_elements_, searched_energy_);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      const CodecSeconds& codec = buckets_[i].codec;
      middle.add_bucket(i, {.compress = codec.compress.count(),
                            .wire = buckets_[i].wire.count(),
                            .decode = codec.decode.count()});
    }
    learned_.transfers().fill(middle);
    Statistics statistics{.step = middle.step, .ranks = {}};
    statistics.ranks.assign(computing.size(), middle);
    for (std::size_t rank = 0; rank < computing.size(); ++rank) {
      Record& record = statistics.ranks[rank];
      const double loudness = ranks_.loudness()[rank];
      record.gradient_energy *= loudness;
      record.sent_energy *= loudness;
      record.residual_energy *= loudness;
      record.weaker_energy *= loudness;
      const double first = buckets_.front().ready;
      if (!computed_before_.empty()) {
        // From the first bucket of the step before to the first of this one.
        const double before = computed_before_[rank];
        record.step_seconds = outcome_.step_seconds.back() + first * (computing[rank] - before);
        record.compute_seconds = before + first * (computing[rank] - before);
      }
      for (std::size_t i = 0; i < buckets_.size(); ++i) {
        record.add_bucket(i, {.ready = (buckets_[i].ready - first) * computing[rank]});
      }
      const auto waited = static_cast<float>(slowest - computing[rank]);
      for (float& seconds : record.transfer_seconds) {
        if (seconds > 0) seconds += waited;
      }
    }
    records_.contributed(statistics.step);
    records_.arrived(std::move(statistics));
    record_on_its_way_ = true;
  }

  const SyntheticJob& job_;
  Policy& policy_;
  const SyntheticRanks ranks_;
  std::vector<SyntheticBucket> buckets_;
  AgreedRecords records_;
  const Statistics* agreed_ = nullptr;
  Learned learned_;
  int depth_;                            // of the pipeline, in this step
  std::vector<double> computed_before_;  // in the step before, by rank
  bool record_on_its_way_ = false;
  double last_record_seconds_ = 0;
  double last_gradient_energy_ = 1;
  double searched_elements_ = 0;  // in this step, by methods that look at magnitudes
  double searched_energy_ = 0;
  SyntheticOutcome outcome_;
};

}  // namespace

SyntheticOutcome simulate(const SyntheticJob& job, Policy& policy, const Progress& progress) {
  Simulation simulation(job, policy);
  const std::int64_t every = std::max<std::int64_t>(1, job.steps / 100);
  for (std::int64_t step = 0; step < job.steps; ++step) {
    simulation.step(step);
    if (progress && (step + 1) % every == 0) progress(step + 1);
  }
  return simulation.finish();
}

std::vector<std::size_t> ddp_buckets(std::size_t parameters) {
  // The first is small, so that sending begins early; megabytes of fp32.
  constexpr std::size_t kFirst = (1 << 20) / 4;
  constexpr std::size_t kOther = 25 * kFirst;
  std::vector<std::size_t> buckets;
  while (parameters > 0) {
    const std::size_t bucket = std::min(parameters, buckets.empty() ? kFirst : kOther);
    buckets.push_back(bucket);
    parameters -= bucket;
  }
  return buckets;
}

}  // namespace tidegate
