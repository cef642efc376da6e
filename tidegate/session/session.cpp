// SPDX-License-Identifier: Apache-2.0
#include "tidegate/session/session.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tidegate/base/half.h"
#include "tidegate/base/hash.h"
#include "tidegate/base/random.h"
#include "tidegate/compressors/low_rank_share.h"
#include "tidegate/network/price.h"
#include "tidegate/policies/ask.h"
#include "tidegate/session/division.h"
#include "tidegate/wire/message.h"

namespace tidegate {
namespace {

// What a round should wait for its latency to be that of the network even where ranks wait for
// processors.
constexpr Seconds kFar{0.02};
constexpr std::int64_t kNoticeable = 50'000;  // nanoseconds; a wait that is longer is one

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

Settings with_clocks(Settings settings) {
  if (!settings.work_clock) settings.work_clock = settings.clock;
  if (!settings.trace_clock) settings.trace_clock = settings.clock;
  return settings;
}

Place checked(Place place) {
  if (place.ranks < 1 || place.rank < 0 || place.rank >= place.ranks) {
    fail(Fault::config, "rank ", place.rank, " of ", place.ranks, " ranks does not exist");
  }
  return place;
}

Topology checked_topology(Place place, const std::vector<int>& hosts) {
  if (hosts.empty()) return Topology(place.ranks);
  if (hosts.size() != static_cast<std::size_t>(place.ranks)) {
    fail(Fault::config, "hosts of ", hosts.size(), " ranks are declared, but there are ",
         place.ranks, " ranks");
  }
  return Topology(hosts);
}

std::size_t checked_threads(int threads) {
  constexpr int kMostThreads = 64;
  if (threads < 1 || threads > kMostThreads) {
    fail(Fault::config, "threads ", threads, ": must be between 1 and ", kMostThreads);
  }
  return static_cast<std::size_t>(threads);
}

// Far apart for seeds that are not: steps and buckets are added to it.
std::uint64_t salt_of(std::uint64_t seed) { return seed == 0 ? 0 : random_bits(seed, 0); }

void fill_slots(const std::vector<BucketFigures>& buckets, Record& record) {
  record.buckets = buckets.size();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    record.add_bucket(i, {.ready = buckets[i].ready_seconds,
                          .compress = buckets[i].compress_seconds,
                          .wire = buckets[i].wire_seconds,
                          .decode = buckets[i].decode_seconds});
  }
}

}  // namespace

Session::Session(Place place, Settings settings)
    : place_(checked(place)),
      settings_(with_clocks(std::move(settings))),
      policy_(settings_.make_policy ? settings_.make_policy()
                                    : make_policy(settings_.policy, settings_.options)),
      needs_(policy_->needs()),
      shared_{checked_topology(place_, settings_.hosts),
              Workers(checked_threads(settings_.threads)),
              {},
              {}},
      statistics_(place, needs_.reacts, needs_.sketches, needs_.window.has_value(),
                  settings_.scale),
      learned_(extent()),
      windows_(needs_.window),
      depth_(settings_.depth),
      processor_time_(settings_.processors, settings_.stolen) {
  shared_.salt = salt_of(settings_.seed);
  if (settings_.depth < 1) {
    fail(Fault::config, "depth ", settings_.depth, ": at least one bucket must be in flight");
  }
  if (settings_.trace) begin_trace();
}

void Session::begin_trace() {
  settings_.trace(start_event({.label = settings_.label,
                               .place = place_,
                               .hosts = shared_.topology.hosts(),
                               .policy = settings_.policy,
                               .options = settings_.options,
                               .own_policy = settings_.make_policy != nullptr,
                               .needs = needs_,
                               .depth = settings_.depth,
                               .emulated = settings_.emulated,
                               .modelled = settings_.modelled,
                               .part = trace_part_}));
}

// The next part repeats what is known and what is being done: the parts before may be removed.
void Session::turn_trace_over() {
  if (!settings_.turn_trace_over || !settings_.turn_trace_over()) return;
  ++trace_part_;
  inputs_ = {};
  asked_.clear();
  told_elements_.clear();
  trace_budget_.spend(timed([&] { begin_trace(); }));
}

// Seconds.
template <typename Write>
double Session::timed(Write write) const {
  const std::int64_t before = settings_.trace_clock();
  write();
  return seconds(settings_.trace_clock() - before);
}

// Whether a reader knows the buckets; foreign ones have no elements.
bool Session::may_be_brief() const {
  return std::ranges::equal(figures_.buckets, told_elements_, {}, &BucketFigures::elements);
}

// Not before its last bucket is handed back: training waits for that one, and not for the trace.
void Session::tell_step() {
  if (!std::exchange(untold_, false)) return;
  const bool brief = !trace_budget_.affords_details() && may_be_brief();
  const double took = timed([&] {
    // A bucket may have been ready some time before this thread learned of it.
    if (!brief) std::ranges::stable_sort(figures_.moments, {}, &Moment::nanoseconds);
    settings_.trace(step_event(figures_, inputs_.take(), {batches_per_step(), rate_scale()},
                               policy_->critical(), brief ? Detail::brief : Detail::full));
  });
  if (brief) {
    trace_budget_.spend_on_brief_step(took);
    return;
  }
  trace_budget_.spend_on_full_step(took);
  told_elements_.clear();
  for (const BucketFigures& bucket : figures_.buckets) told_elements_.push_back(bucket.elements);
}

BucketAverage& Session::bucket_at(int index) {
  while (static_cast<int>(buckets_.size()) <= index) {
    const int next = static_cast<int>(buckets_.size());
    buckets_.push_back(std::make_unique<BucketAverage>(place_.rank, next, shared_));
  }
  return *buckets_[static_cast<std::size_t>(index)];
}

bool Session::excluded(const std::string& layer) const {
  return std::ranges::any_of(settings_.exclude, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), layer.c_str(), 0) == 0;
  });
}

Layers Session::compressible(const Layers& layers) const {
  Layers left = layers;
  std::erase_if(left, [this](const Layer& layer) { return excluded(layer.name); });
  return left;
}

void Session::lay_out(int bucket, const Layers& layers) {
  for (const Layer& layer : layers) {
    if (layer.rows > 0 && layer.elements % layer.rows != 0) {
      fail(Fault::config, "layer \"", layer.name, "\" of ", layer.elements,
           " elements cannot be a matrix of ", layer.rows, " rows");
    }
  }
  agreed_with_peers_ = false;
  // Layers may move from any bucket to any other. Those that are on their way in this step have
  // been laid out before, and keep theirs.
  const std::size_t on_their_way = pipeline_ ? figures_.buckets.size() : 0;
  for (std::size_t i = on_their_way; i < buckets_.size(); ++i) buckets_[i]->retire();
  bucket_at(bucket).lay_out(layers, [this](const std::string& layer) { return excluded(layer); });
}

void Session::submit(const ReadyBucket& bucket) {
  const int index = next_to_submit_;
  statistics_.repeat();
  if (!bucket.foreign && bucket_at(index).layers().empty()) {
    lay_out(index, {{concat("bucket ", index), bucket.data.size() / bytes_of(bucket.element)}});
  }
  submitted_.push_back(bucket);
  next_to_submit_ = bucket.last ? 0 : index + 1;
}

std::optional<Ticket> Session::next() {
  // Statistics of an earlier step go before anything of a later one, on every rank.
  if (statistics_.waiting()) {
    if (!statistics_.ready()) {
      tell_step();
      return std::nullopt;
    }
    statistics_.issue();
    const Ticket ticket{kStatisticsBucket, 1};
    wire_.issue(ticket, expected(record_round()), settings_.clock());
    return ticket;
  }
  while (!submitted_.empty() && !statistics_.blocks(step_)) {
    const ReadyBucket ready = submitted_.front();
    submitted_.pop_front();
    admit(ready);
  }
  if (!pipeline_) {
    tell_step();
    return std::nullopt;
  }
  const std::int64_t before = settings_.work_clock();
  const std::optional<Ticket> ticket = pipeline_->next();
  if (!ticket) return std::nullopt;
  const std::int64_t worked = settings_.work_clock() - before;
  const std::int64_t now = settings_.clock();
  BucketFigures& figures = figures_.buckets[static_cast<std::size_t>(ticket->bucket)];
  figures.compress_seconds += seconds(worked);
  const Request& request = pipeline_->request(*ticket);
  figures.bytes_sent += bytes_sent(request, extent());
  wire_.issue(*ticket, expected(round_of(request)), now,
              /*in_steps=*/std::holds_alternative<SendReceive>(request));
  wire_starts(now);
  note("issue", ticket->bucket, ticket->round, now);
  return ticket;
}

const Request& Session::request(Ticket ticket) const {
  return ticket.bucket == kStatisticsBucket ? statistics_.request() : pipeline_->request(ticket);
}

void Session::complete(Ticket ticket, bool finite, double took) {
  const std::int64_t arrived = settings_.clock();
  const auto arrival = wire_.arrive(ticket, arrived, took != kNoticedLate);
  if (!arrival) {
    fail(Fault::config, "round ", ticket.round, " of bucket ", ticket.bucket, " was never issued");
  }
  const bool by_clock = took == kByClock || took == kNoticedLate;
  const bool told = !by_clock && std::isfinite(took);
  const double on_wire = told ? took : seconds(arrived - arrival->issued);
  if (by_clock) took = arrival->charged;
  if (ticket.bucket == kStatisticsBucket) {
    // Logged under the step of its records: in which step it arrives differs between ranks.
    const auto records = statistics_.complete();
    const bool repeated = records && records->took_before;
    if (records) {
      const Round round = record_round();
      const double first = latency_of(round) ? records->took_before.value_or(took) : kUnknown;
      learned_.transfers().note(records->step, ticket, round, first);
    }
    if (!repeated) last_record_seconds_ = std::isfinite(took) ? took : on_wire;
    return;
  }
  const Request& asked = pipeline_->request(ticket);
  // Who only sends, or looks on, does not see how long the others take.
  const auto* step = std::get_if<SendReceive>(&asked);
  const bool takes_part = !std::holds_alternative<Idle>(asked) && (!step || step->from >= 0);
  learned_.transfers().note(step_, ticket, round_of(asked), takes_part ? took : kUnknown);
  foreign_finite_ = foreign_finite_ && finite;
  wire_ends(arrived);
  if (told) figures_.record.wire_seconds += took;
  note("arrive", ticket.bucket, ticket.round, arrived);
  BucketFigures& figures = figures_.buckets[static_cast<std::size_t>(ticket.bucket)];
  figures.wire_seconds += on_wire;
  const std::size_t finished = finished_.size();
  const std::int64_t before = settings_.work_clock();
  pipeline_->complete(ticket);
  const double computing = seconds(settings_.work_clock() - before);
  const bool was_last_round = finished_.size() > finished;
  (was_last_round ? figures.decode_seconds : figures.compress_seconds) += computing;
  if (pipeline_->finished()) finish_step();
}

Round Session::record_round() const { return records_round(needs_.sketches, settings_.scale); }

std::optional<SharedWire::Expected> Session::expected(const Round& round) const {
  if (round.collective == Collective::foreign) return std::nullopt;
  return SharedWire::Expected{price(round, learned_.network().network()).total().count(),
                              cost(round, extent()).bytes,
                              latency_of(round).value_or(Seconds(0)).count()};
}

// Of the network; none = where processors are short, a round waits for ranks that compute more than
// for a network that is near.
std::optional<Seconds> Session::latency_of(const Round& round) const {
  const Seconds waiting = price(round, learned_.network().network()).waiting;
  if (settings_.processors > 0 && waiting < kFar) return std::nullopt;
  return waiting;
}

std::vector<int> Session::take_finished() { return std::exchange(finished_, {}); }

void Session::begin_step(std::int64_t when, const ReadyBucket& first) {
  tell_step();
  turn_trace_over();
  step_buckets_.clear();
  foreign_finite_ = true;
  figures_ = {};
  figures_.step = step_;
  figures_.record.step = step_;
  figures_.record.step_seconds = step_began_ ? seconds(when - *step_began_) : 0;
  figures_.record.compute_seconds = std::max(0.0, figures_.record.step_seconds - last_exposed_);
  figures_.record.record_seconds = last_record_seconds_;
  processor_time_.begin_step(first.processed, step_began_.has_value());
  step_began_ = when;
  trace_budget_.earn(figures_.record.step_seconds);
  agreed_ = statistics_.begin_step(step_);
  learn();
  observe();
  record_is_due_ = statistics_.due(step_) || policy_->asks_for_record();
  if (record_is_due_) tell_processor_time();
  wanted_ = {.magnitudes = record_is_due_ && needs_.magnitudes,
             .sketches = record_is_due_ && needs_.sketches};
  wants_low_rank_share_ = record_is_due_ && policy_->asks_for_low_rank_share();
  choose_depth();
  pipeline_.emplace(depth_, [this](int bucket) {
    finished_.push_back(bucket);
    note("done", bucket, 0, settings_.clock());
  });
}

void Session::tell_processor_time() {
  const ProcessorTime::Mean mean = processor_time_.mean();
  figures_.record.training_seconds = mean.training;
  figures_.record.exchanging_seconds = mean.exchanging;
  processor_time_.start_anew();
}

// From records that have become old enough: the same on all ranks, in the same step.
void Session::learn() {
  for (const NetworkChange& change : learned_.learn(agreed_)) {
    if (!settings_.trace) continue;
    trace_budget_.spend(timed([&] {
      settings_.trace(network_event(step_, learned_.network().network(), describe(change)));
    }));
  }
  if (!agreed_ || settings_.modelled) return;
  if (auto notice = stragglers_.see(*agreed_)) {
    note_slow(*notice);
    notices_.push_back(std::move(*notice));
  }
}

// What the policy is told before it is asked.
void Session::observe() {
  // What is new may have been laid out already on this rank and not yet on another; but all have
  // the first bucket of the step.
  const Layers& first = bucket_at(0).compressible();
  if (seen_.empty() || seen_.front() != first) seen_.assign(1, first);
  shapes_.clear();
  for (const Layers& layers : seen_) {
    shapes_.push_back({elements_of(layers), place_.ranks, layers});
  }
  // Ranks may differ in when they heard of an epoch's end, but not in what they agreed on.
  std::uint64_t epochs = 0;
  if (agreed_) {
    epochs = std::ranges::min(agreed_->ranks, {}, &Record::epochs).epochs;
  }
  now_ = learned_.situation({.step = step_,
                             .ranks = place_.ranks,
                             .speeds = needs_.speeds ? &speeds_ : nullptr,
                             .buckets = shapes_,
                             .depth = settings_.depth,
                             .window = windows_.begin_step(static_cast<std::int64_t>(epochs))},
                            agreed_);
  if (settings_.trace) tell_inputs();
  resumed_.reset();
  seen_by_all_.clear();
  tidegate::begin_step(*policy_, settings_.policy, now_);
}

// From agreed numbers alone: it decides which collective follows which.
void Session::choose_depth() {
  if (!now_.fresh && !std::exchange(depth_is_due_, false)) return;
  std::vector<std::vector<Round>> rounds(seen_.size());
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto present = present_.find(static_cast<int>(i));
    if (present == present_.end() || !numbers_below(present->second, seen_[i].size())) continue;
    const auto add = [&](std::span<const std::size_t> numbers, const Choice& choice) {
      const Layers layers = pick(seen_[i], numbers);
      const int ranks = choice.by_host ? shared_.topology.hosts() : place_.ranks;
      std::ranges::copy(exchange_rounds({elements_of(layers), ranks, layers}, choice),
                        std::back_inserter(rounds[i]));
    };
    const Decision& decision = present->second;
    add(layers_together(decision, seen_[i].size()), decision.choice);
    for (const Decision::Apart& group : decision.apart) add(group.layers, group.choice);
  }
  depth_ = learned_.depth(rounds, settings_.depth);
}

// For policies that look at averaged gradients.
void Session::sum_up() {
  if (!windows_.wanted() || figures_.record.finite == 0) return;
  for_each_mean([&](const ReadyBucket& bucket, const Layer& layer, std::span<const float> mean) {
    windows_.add(layer.name, mean, 1.0f / bucket.loss_scale);
  });
  windows_.end_step();
}

// In the step that is being finished.
void Session::for_each_mean(
    const std::function<void(const ReadyBucket&, const Layer&, std::span<const float>)>& visit) {
  for (std::size_t i = 0; i < step_buckets_.size(); ++i) {
    const ReadyBucket& bucket = step_buckets_[i];
    if (bucket.foreign) continue;
    buckets_[i]->for_each_mean(bucket, [&](const Layer& layer, std::span<const float> mean) {
      visit(bucket, layer, mean);
    });
  }
}

void Session::admit(const ReadyBucket& ready) {
  const std::int64_t when = ready.ready > 0 ? ready.ready : settings_.clock();
  if (!pipeline_) begin_step(when, ready);
  last_ready_ = when;
  const int index = static_cast<int>(figures_.buckets.size());
  BucketAverage& bucket = bucket_at(index);
  const std::size_t elements = ready.foreign ? 0 : ready.data.size() / bytes_of(ready.element);
  if (!ready.foreign && elements_of(bucket.layers()) != elements) {
    fail(Fault::config, "bucket ", index, " has ", elements, " elements, its layers ",
         elements_of(bucket.layers()));
  }
  BucketFigures figures;
  figures.elements = elements;
  figures.ready_seconds = seconds(when - *step_began_);
  if (ready.foreign) {
    figures.method = "foreign";
  } else {
    const Decision decision = decide(index, ready);
    bucket.divide(decision);
    figures.choice = decision.choice;
    count_choice(decision.choice);
    for (const Decision::Apart& group : decision.apart) {
      figures.apart.push_back({pick(bucket.compressible(), group.layers), group.choice});
      count_choice(group.choice);
    }
    const Round dense{Collective::all_reduce, ready.data.size(), Route::engine};
    totals_.dense_bytes += bytes_sent(dense, place_.ranks);
  }
  figures_.buckets.push_back(figures);
  step_buckets_.push_back(ready);
  note("ready", index, 0, when);
  const bool low_rank = std::ranges::any_of(figures.choices(), [](const Choice& choice) {
    return choice.method && choice.method->level == Level::rank;
  });
  Wanted wanted = wanted_;
  wanted.sketches = wanted.sketches && (low_rank || !needs_.only_low_rank);
  pipeline_->add(bucket.average(ready, step_, wanted),
                 static_cast<int>(bucket.rounds(ready).size()), ready.last);
}

void Session::count_choice(const Choice& choice) {
  const std::string text = describe(choice);
  const bool room = choice_counts_.contains(text) || choice_counts_.size() < kMostChoices;
  ++choice_counts_[room ? text : kOtherChoices];
}

// What the policy says, checked, with routes settled.
Decision Session::decide(int index, const ReadyBucket& ready) {
  const BucketAverage& bucket = bucket_at(index);
  const Question question{.now = now_,
                          .bucket = index,
                          .elements = ready.data.size() / bytes_of(ready.element),
                          .layers = bucket.compressible()};
  const Decision asked = ask(*policy_, settings_.policy, question);
  const bool excluded = bucket.all_excluded() && asked.choice.method->name != "dense";
  Decision decision = excluded ? Decision{.choice = make_choice("dense"), .reason = {}} : asked;
  normalise(decision, question.layers.size());
  const auto known = present_.find(index);
  // The layers may be others by now, and fewer.
  const bool fits = known != present_.end() && numbers_below(known->second, question.layers.size());
  const Decision* present = fits ? &known->second : nullptr;
  settle_routes(bucket, present, decision);
  if (settings_.trace) trace_decision(question, asked, decision, excluded);
  if (!present || present->choice != decision.choice || present->apart != decision.apart) {
    depth_is_due_ = true;
  }
  present_[index] = decision;
  return decision;
}

// In most steps there is less to do than to look at a clock.
void Session::tell_inputs() {
  if (!inputs_.has_news(now_, resumed_.has_value())) return inputs_.tell(now_, resumed_);
  trace_budget_.spend(timed([&] { inputs_.tell(now_, resumed_); }));
}

// Only what is new: most decisions repeat those of the step before.
void Session::trace_decision(const Question& question, const Decision& asked,
                             const Decision& settled, bool excluded) {
  inputs_.ask(question);
  const auto same = [](const Decision& one, const Decision& other) {
    return one.choice == other.choice && one.apart == other.apart;
  };
  const auto before = asked_.find(question.bucket);
  const auto present = present_.find(question.bucket);
  if (before != asked_.end() && present != present_.end() && same(present->second, settled) &&
      same(before->second, asked) && asked.dropped.empty()) {
    return;
  }
  asked_[question.bucket] = asked;
  trace_budget_.spend(timed([&] {
    if (seen_by_all_.empty()) seen_by_all_ = seen_by_all(now_);
    settings_.trace(decision_event(question, asked, settled.choice, excluded, seen_by_all_));
  }));
}

// Of every part, by its own layers. It does at present what the part with these layers did.
void Session::settle_routes(const BucketAverage& bucket, const Decision* present,
                            Decision& decision) const {
  const auto settle = [&](Choice& choice, const Layers& layers, const Choice* before) {
    const int ranks = choice.by_host ? shared_.topology.hosts() : place_.ranks;
    choice = learned_.settle(choice, {elements_of(layers), ranks, layers}, before);
  };
  const Layers& all = bucket.compressible();
  if (decision.apart.empty()) {
    const bool same = present && present->apart.empty();
    settle(decision.choice, all, same ? &present->choice : nullptr);
    return;
  }
  const auto together = layers_together(decision, all.size());
  const bool same = present && layers_together(*present, all.size()) == together;
  settle(decision.choice, pick(all, together), same ? &present->choice : nullptr);
  for (Decision::Apart& group : decision.apart) {
    const Choice* before = nullptr;
    if (present) {
      const auto found = std::ranges::find(present->apart, group.layers, &Decision::Apart::layers);
      if (found != present->apart.end()) before = &found->choice;
    }
    settle(group.choice, pick(all, group.layers), before);
  }
}

void Session::finish_step() {
  const std::int64_t now = settings_.clock();
  figures_.seconds = seconds(now - *step_began_);
  last_exposed_ = std::max(0.0, seconds(now - last_ready_));
  Record& record = figures_.record;
  for (const BucketFigures& bucket : figures_.buckets) {
    if (bucket.error_feedback()) record.compressed = 1;
    record.compress_seconds += bucket.compress_seconds;
    record.decode_seconds += bucket.decode_seconds;
    record.bytes_sent += bucket.bytes_sent;
  }
  figures_.watched = residuals_in_use() || windows_.wanted();
  if (figures_.watched) {
    settle_residuals();
  } else {
    note_overflow();
  }
  sum_up();
  note_buckets();
  for (std::size_t i = 0; i < figures_.buckets.size(); ++i) {
    BucketFigures& bucket = figures_.buckets[i];
    bucket.report = buckets_[i]->report();
    if (bucket.report.root >= 0) ++totals_.roots[bucket.report.root];
    record.gradient_energy += bucket.report.gradient_energy;
    record.sent_energy += bucket.report.sent_energy;
    record.residual_energy += bucket.report.residual_energy;
    record.weaker_energy += bucket.report.weaker_energy;
    record.overlap += bucket.report.overlap;
    record.magnitudes += bucket.report.magnitudes;
  }
  if (record_is_due_) {
    fill_slots(figures_.buckets, record);
    record.learning_rate = rates_.rate();
    record.rate_drops = rates_.count();
    record.epochs = epochs_;
    if (wanted_.sketches) fill_sketches(record);
    if (wants_low_rank_share_) record.low_rank_share = low_rank_share();
    learned_.transfers().fill(record);
    statistics_.contribute(record);
  }
  untold_ = settings_.trace != nullptr;
  ++totals_.steps;
  totals_.bytes_sent += record.bytes_sent;
  totals_.compress_seconds += record.compress_seconds;
  totals_.wire_seconds += record.wire_seconds;
  totals_.decode_seconds += record.decode_seconds;
  totals_.exchange_seconds += figures_.seconds;
  totals_.gradient_energy = record.gradient_energy;
  totals_.residual_energy = record.residual_energy;
  pipeline_.reset();
  ++step_;
}

void Session::fill_sketches(Record& record) {
  std::array<float, kSketchBuckets> gradient{};
  std::array<float, kSketchBuckets> residual{};
  for (std::size_t i = 0; i < step_buckets_.size(); ++i) {
    if (buckets_[i]->add_to_sketches(gradient, residual)) record.sketched = 1;
  }
  std::ranges::transform(gradient, record.gradient_sketch.begin(), to_bf16);
  std::ranges::transform(residual, record.residual_sketch.begin(), to_bf16);
}

// Of what was delivered. Layers that stay dense are carried whole, like vectors.
double Session::low_rank_share() {
  if (figures_.record.finite == 0) return 0;
  LowRankShare share;
  for_each_mean([&](const ReadyBucket&, const Layer& layer, std::span<const float> mean) {
    const std::size_t rows = excluded(layer.name) ? 0 : layer.rows;
    share.add({layer.name, layer.elements, rows}, mean);
  });
  return share.share();
}

// The buckets of a step that is finished are known to all ranks.
void Session::note_buckets() {
  seen_.resize(figures_.buckets.size());
  last_layout_.resize(seen_.size());
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (last_layout_[i] != buckets_[i]->layers()) last_layout_[i] = buckets_[i]->layers();
    if (seen_[i] == buckets_[i]->compressible()) continue;
    seen_[i] = buckets_[i]->compressible();
    depth_is_due_ = true;
  }
}

bool Session::residuals_in_use() const {
  return std::ranges::any_of(buckets_, [](const auto& bucket) { return bucket->bound(); });
}

// If any result is NaN or Inf, which every rank sees alike, nobody's optimiser can use the step:
// then nothing of it was delivered, and every bucket takes back what it sent.
void Session::settle_residuals() {
  bool finite = foreign_finite_;
  for (std::size_t i = 0; i < step_buckets_.size(); ++i) {
    buckets_[i]->check_result(step_buckets_[i]);
    finite = finite && buckets_[i]->report().finite;
  }
  if (finite) return;
  for (std::size_t i = 0; i < step_buckets_.size(); ++i) {
    if (!step_buckets_[i].foreign) buckets_[i]->restore();
  }
  figures_.record.finite = 0;
  ++totals_.skipped_steps;
}

// fp16 overflows where fp32 does not, and shows it for free. Nothing waits that could be put back.
void Session::note_overflow() {
  for (std::size_t i = 0; i < step_buckets_.size(); ++i) {
    if (buckets_[i]->report().finite) continue;
    if (totals_.skipped_steps == 0) {
      notices_.push_back(concat("the mean of bucket ", i, " in step ", step_,
                                " is Inf or NaN: fp16 holds numbers up to 65504, the loss scale "
                                "included. Use a GradScaler (scaler=), a smaller scale, or bf16"));
    }
    figures_.watched = true;
    figures_.record.finite = 0;
    ++totals_.skipped_steps;
    return;
  }
}

void Session::note(std::string_view what, int bucket, int round, std::int64_t when) {
  if (settings_.trace) figures_.moments.push_back({when - *step_began_, what, bucket, round});
}

void Session::wire_starts(std::int64_t now) {
  if (on_wire_++ == 0) wire_since_ = now;
}

void Session::wire_ends(std::int64_t now) {
  if (--on_wire_ == 0) figures_.record.wire_seconds += seconds(now - wire_since_);
}

void Session::run(Engine& engine) {
  if (!agreed_with_peers_) agree(engine);
  std::deque<std::pair<Ticket, Engine::Operation>> in_flight;
  try {
    while (true) {
      while (const auto ticket = next()) {
        in_flight.emplace_back(*ticket, engine.start(request(*ticket)));
      }
      if (in_flight.empty()) return;
      const auto [ticket, operation] = in_flight.front();
      in_flight.pop_front();
      const std::int64_t before = settings_.clock();
      engine.wait(operation);
      // One that was there already may have arrived long ago.
      const bool waited = settings_.clock() - before > kNoticeable;
      complete(ticket, true, waited ? kByClock : kNoticedLate);
    }
  } catch (...) {
    // The caller may free its memory now: nobody must write into it any more.
    for (const auto& [ticket, operation] : in_flight) {
      try {
        engine.wait(operation);
      } catch (const Error&) {
      }
    }
    throw;
  }
}

void Session::agree(Engine& engine) {
  const std::array texts = {fingerprint(), layout(), loaded()};
  constexpr std::array kNames = {"settings", "layers", "loaded states"};
  using Hashes = std::array<std::uint64_t, kNames.size()>;
  Hashes mine;
  std::ranges::transform(texts, mine.begin(), hash_of);
  std::vector<Hashes> all(static_cast<std::size_t>(place_.ranks));
  engine.wait(engine.start(
      AllGather{std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all))}));
  for (std::size_t what = 0; what < texts.size(); ++what) {
    std::string others;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][what] != all[0][what]) others += concat(others.empty() ? "" : ", ", rank);
    }
    if (others.empty()) continue;
    fail(what == 2 ? Fault::checkpoint : Fault::config, "ranks ", others, " have other ",
         kNames[what], " than rank 0; this is rank ", place_.rank, " with ", texts[what]);
  }
  // After the comparison, which is collective: a mistake of one rank must not leave others waiting.
  if (engine.topology() != shared_.topology) {
    fail(Fault::config, "the engine and the settings of rank ", place_.rank,
         " disagree on which ranks share a host");
  }
  note_agreement();
}

std::string Session::fingerprint() const {
  std::string text = concat("wire version ", wire::kVersion, ", records of ", sizeof(Record),
                            " bytes; ranks ", place_.ranks, "; policy ", settings_.policy);
  for (const auto& [key, value] : settings_.options) text += concat(" ", key, "=", value);
  text += policy_->fingerprint();
  text += concat("; depth ", settings_.depth, "; seed ", settings_.seed, "; label \"",
                 settings_.label, "\"; exclude");
  for (const std::string& pattern : settings_.exclude) text += concat(" ", pattern);
  text += "; leaders";
  for (int rank = 0; rank < place_.ranks; ++rank) {
    text += concat(" ", shared_.topology.leader(rank));
  }
  return text;
}

std::string Session::layout() const {
  std::string text;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    text += concat(i == 0 ? "" : "; ", "bucket ", i, ":");
    for (const Layer& layer : buckets_[i]->layers()) {
      text += concat(" ", layer.name, " ", layer.elements);
      if (layer.rows > 0) text += concat(" (", layer.rows, " rows)");
    }
  }
  return text;
}

void Session::log(const UserFigures& figures, std::optional<std::int64_t> step) {
  if (!settings_.trace) return;
  tell_step();
  settings_.trace(log_event(step.value_or(std::max<std::int64_t>(0, step_ - 1)), figures));
}

void Session::note_fault(const Error& error) {
  tell_step();
  if (settings_.trace) settings_.trace(fault_event(step_, name(error.kind()), error.what()));
}

void Session::note_slow(std::string_view text) {
  tell_step();
  if (settings_.trace) settings_.trace(fault_event(step_, "slow", text));
}

void Session::note_end() {
  if (!settings_.trace) return;
  tell_step();
  std::optional<TraceCost> cost;  // modelled time has none
  if (!settings_.modelled) cost = {trace_budget_.spent(), trace_budget_.brief_steps()};
  settings_.trace(end_event(step_, totals_.bytes_sent, totals_.dense_bytes, cost));
}

}  // namespace tidegate
