// SPDX-License-Identifier: Apache-2.0
// A session averages the buckets of a training job, step after step: it asks the policy, runs the
// exchanges through the pipeline, keeps residuals and statistics, and writes the trace. It performs
// no communication: whoever drives it issues what next() returns and reports completions, all from
// one thread.
//
//   session.submit(bucket);                             // for each bucket, as it becomes ready
//   while (auto ticket = session.next()) start(session.request(*ticket));
//   ... when a collective has been performed: session.complete(ticket);
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tidegate/base/clock.h"
#include "tidegate/base/error.h"
#include "tidegate/comm/engine.h"
#include "tidegate/comm/pipeline.h"
#include "tidegate/policies/input_writer.h"
#include "tidegate/policies/learned.h"
#include "tidegate/policies/policy.h"
#include "tidegate/session/bucket_average.h"
#include "tidegate/session/processor_time.h"
#include "tidegate/session/rate_drops.h"
#include "tidegate/session/shared_wire.h"
#include "tidegate/session/state.h"
#include "tidegate/session/statistics_round.h"
#include "tidegate/session/stragglers.h"
#include "tidegate/session/trace.h"
#include "tidegate/session/trace_budget.h"
#include "tidegate/session/window_sums.h"

namespace tidegate {

// What a session is asked to do: the same on all ranks, but for what is written where.
struct Settings {
  std::string policy = "fixed";  // a row of policies()
  Options options = {{"method", "dense"}};
  // The user's own policy instead of a row of the table; `policy` is its name then.
  std::function<std::unique_ptr<Policy>()> make_policy;
  std::vector<std::string> exclude;  // glob patterns of layer names that stay dense
  std::vector<int> hosts;            // of each rank, as any numbers; empty = all apart
  int depth = 2;  // most buckets in flight with rounds still to come; see Session::depth()
  // That this rank has for itself if ranks share some, at most one; this may differ from rank to
  // rank. 0 = it has more, or nobody knows.
  double processors = 0;
  std::function<ProcessorTime::Stolen()> stolen = ProcessorTime::stolen_so_far;
  int threads = 1;         // that compress, with the one that drives the session
  std::uint64_t seed = 0;  // of the random numbers that methods draw
  std::string label;       // for the trace
  std::string emulated;    // the link that times are emulated for, if they are
  bool modelled = false;   // `clock` runs in modelled time
  double scale = 1;        // of the modelled job to this one: see ModelledClock
  TraceSink trace;         // empty = no trace
  // Asked between steps: whether the trace goes on in another part, which begins with all that a
  // reader has to know. Empty = never.
  std::function<bool()> turn_trace_over;
  Clock clock = monotonic_nanoseconds;
  Clock work_clock;   // what compressing and decoding takes is read from this one; empty = clock
  Clock trace_clock;  // and from this what writing the trace takes; empty = clock
};

// Sums since the session began.
struct Totals {
  std::int64_t steps = 0;
  double bytes_sent = 0;
  double dense_bytes = 0;  // what an all-reduce of the buckets as they came would have sent
  double compress_seconds = 0;
  double wire_seconds = 0;
  double decode_seconds = 0;
  double exchange_seconds = 0;  // first bucket ready to last bucket done
  double gradient_energy = 0;   // of the last step
  double residual_energy = 0;   // of the last step
  // Steps with a NaN or Inf: seen while something may be waiting, and in fp16.
  std::int64_t skipped_steps = 0;
  std::map<int, std::int64_t> roots;  // how often a rank's selection was used for all, by rank
};

class Session {
 public:
  Session(Place place, Settings settings);
  Session(const Session&) = delete;  // exchanges under way refer to it
  Session& operator=(const Session&) = delete;

  // The layers of a bucket, before it is first submitted and whenever they change.
  void lay_out(int bucket, const Layers& layers);

  // The next bucket of the step, in order. It is compressed later, inside next().
  void submit(const ReadyBucket& bucket);

  std::optional<Ticket> next();
  const Request& request(Ticket ticket) const;
  // `finite` = for Foreign requests: whether the result is free of NaN and Inf. `seconds` = what
  // the transfer took, if whoever performed it knows better than the clock: modelled, or unknown.
  // By the clock it may have been noticed as soon as it came, or have come some time ago.
  static constexpr double kByClock = -1;
  static constexpr double kNoticedLate = -2;
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  void complete(Ticket ticket, bool finite = true, double seconds = kByClock);

  // Buckets whose mean is in their buffer, since the last call.
  std::vector<int> take_finished();

  // Drives everything that was submitted to its end, on an engine of this process. All ranks must
  // have equal settings: compared in the first call.
  void run(Engine& engine);

  // Settings, the layers of all buckets, and what the policy has loaded, as texts: equal on all
  // ranks of a healthy job.
  std::string fingerprint() const;
  std::string layout() const;
  const std::string& loaded() const { return loaded_; }
  // All ranks' texts were compared since the layers last changed or a state was loaded; whoever
  // drives the session does it before the next collective.
  bool agreed() const { return agreed_with_peers_; }
  void note_agreement() { agreed_with_peers_ = true; }

  // What the network was found to be before the first step; the same on all ranks. From then on
  // transfers correct it, and routes that were left open go by price. Without this they go by
  // bytes, so that a job that asks for nothing that depends on time repeats itself bit for bit.
  void start_from(const Network& network) {
    learned_.start_from(network);
    statistics_.watch();
  }
  // What compressing takes; the same on all ranks. For policies that need it.
  void set_speeds(CodecSpeeds speeds) {
    speeds_ = std::move(speeds);
    inputs_.forget_speeds();
  }
  // What the policy wants to be told: whether calibration is worth its time, for example.
  const Needs& needs() const { return needs_; }
  // Of the optimiser, group by group, as the next step will use them. Policies hear of drops.
  void set_learning_rates(std::span<const double> rates) { rates_.see(rates); }
  // An epoch has come to its end; counts when all ranks have said so.
  void end_epoch() { ++epochs_; }
  // Batches that are accumulated for the next step, when the step before is finished.
  int batches_per_step() const { return policy_->batches_per_step(); }
  // And what the user's learning rates are multiplied with for it.
  double rate_scale() const { return policy_->rate_scale(); }
  const NetworkEstimate& network() const { return learned_.network(); }
  const JobTimes& times() const { return learned_.times(); }
  // Buckets in flight in the present step, or else in the last: what was measured decides. Without
  // a network to go by, as many as there may be.
  int depth() const { return depth_; }
  // What a round of records asks for, for whoever prices it.
  Round record_round() const;
  // The step that was finished last.
  const StepFigures& last_step() const { return figures_; }
  // How long its last bucket kept the others waiting, if that is not for the clock to say.
  void set_exposed(Seconds exposed) { last_exposed_ = exposed.count(); }

  const Topology& topology() const { return shared_.topology; }
  std::int64_t step() const { return step_; }
  const Totals& totals() const { return totals_; }
  // How often each choice was made. Policies whose ratios vary smoothly make ever new ones: from
  // kMostChoices on these are counted together, as kOtherChoices.
  static constexpr std::size_t kMostChoices = 200;
  static constexpr const char* kOtherChoices = "other choices";
  const std::map<std::string, std::int64_t>& choices() const { return choice_counts_; }

  // Everything that later steps depend on. Changes nothing, so a job that saves gives the same bits
  // as one that does not. Between two steps.
  State state() const;
  // Goes on as the session that gave it would have. Its own, or a mean (session/resize.h). All or
  // nothing: after an Error{checkpoint} the session is as it was.
  void load(const State& state);

  // For the trace: what the user says of a step, by default of the last one that is finished.
  void log(const UserFigures& figures, std::optional<std::int64_t> step = {});
  // For the trace: the driver ran into an error.
  void note_fault(const Error& error);
  // Likewise: some rank keeps the others waiting, which is no error yet.
  void note_slow(std::string_view text);
  // Sentences for the user since the last call; the same on all ranks.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }
  // For the trace: the job has come to its end.
  void note_end();

 private:
  BucketAverage& bucket_at(int index);
  bool excluded(const std::string& layer) const;
  Layers compressible(const Layers& layers) const;
  void admit(const ReadyBucket& ready);
  Decision decide(int bucket, const ReadyBucket& ready);
  void trace_decision(const Question& question, const Decision& asked, const Decision& settled,
                      bool excluded);
  void settle_routes(const BucketAverage& bucket, const Decision* present,
                     Decision& decision) const;
  void begin_trace();
  void turn_trace_over();
  void tell_inputs();
  void tell_step();
  bool may_be_brief() const;
  template <typename Write>
  double timed(Write write) const;
  void begin_step(std::int64_t when, const ReadyBucket& first);
  void finish_step();
  std::optional<SharedWire::Expected> expected(const Round& round) const;
  std::optional<Seconds> latency_of(const Round& round) const;
  void tell_processor_time();
  void learn();
  void observe();
  void choose_depth();
  void sum_up();
  void fill_sketches(Record& record);
  double low_rank_share();
  void for_each_mean(
      const std::function<void(const ReadyBucket&, const Layer&, std::span<const float>)>& visit);
  void note_buckets();
  bool residuals_in_use() const;
  Extent extent() const { return {place_.ranks, shared_.topology.hosts()}; }
  void count_choice(const Choice& choice);
  void settle_residuals();
  void note_overflow();
  Notes progress() const;
  void check_fits(const State& state) const;
  void check_layer(const std::string& name, std::size_t elements) const;
  void recall(const Notes& policy);
  void note(std::string_view what, int bucket, int round, std::int64_t when);
  void wire_starts(std::int64_t now);
  void wire_ends(std::int64_t now);
  void agree(Engine& engine);

  const Place place_;
  const Settings settings_;
  std::unique_ptr<Policy> policy_;
  const Needs needs_;
  Shared shared_;
  std::vector<std::unique_ptr<BucketAverage>> buckets_;
  StatisticsRound statistics_;
  const Statistics* agreed_ = nullptr;
  Learned learned_;
  Stragglers stragglers_;
  std::vector<std::string> notices_;
  CodecSpeeds speeds_;
  WindowSums windows_;
  RateDrops rates_;
  std::uint64_t epochs_ = 0;
  Situation now_;               // of the present step
  Wanted wanted_;               // of it, because its record will be sent
  bool record_is_due_ = false;  // after the present step
  bool wants_low_rank_share_ = false;
  std::vector<Layers> last_layout_;  // of the buckets, in the step that was finished last
  std::vector<Layers> seen_;   // of the buckets that all ranks have seen, what may be compressed
  std::vector<Shape> shapes_;  // of these

  std::int64_t step_ = 0;
  int depth_;
  bool depth_is_due_ = true;  // what it was chosen from has changed
  std::optional<Pipeline> pipeline_;
  std::deque<ReadyBucket> submitted_;
  std::vector<int> finished_;
  std::map<int, Decision> present_;  // by bucket, to tell when one changes something
  std::map<int, Decision> asked_;    // the same as the policy put it
  InputWriter inputs_;               // for the trace
  std::int64_t trace_part_ = 0;
  std::string seen_by_all_;  // before the decisions of the present step; empty if it had none yet
  bool untold_ = false;      // the step that was finished last is not in the trace yet
  TraceBudget trace_budget_;
  std::vector<std::size_t> told_elements_;  // of the buckets, in the last step that was full
  std::optional<Notes> resumed_;            // what the policy recalled since the last step
  std::string loaded_ = "none";             // step and policy's notes, as a text to compare
  bool agreed_with_peers_ = false;
  int next_to_submit_ = 0;  // bucket of the step

  std::vector<ReadyBucket> step_buckets_;
  bool foreign_finite_ = true;
  StepFigures figures_;
  SharedWire wire_;
  std::optional<std::int64_t> step_began_;  // none = what lies before is no step
  ProcessorTime processor_time_;
  int on_wire_ = 0;
  std::int64_t wire_since_ = 0;
  std::int64_t last_ready_ = 0;
  double last_exposed_ = 0;  // of the step before: seconds from its last bucket ready to all done
  double last_record_seconds_ = 0;

  Totals totals_;
  std::map<std::string, std::int64_t> choice_counts_;
};

}  // namespace tidegate
