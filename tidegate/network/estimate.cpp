// SPDX-License-Identifier: Apache-2.0
#include "tidegate/network/estimate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "tidegate/base/error.h"

namespace tidegate {
namespace {

// Before anything is known: weak guesses that the first transfers overrule.
constexpr double kGuessedRate = 125e6;
constexpr double kGuessedLatency = 1e-4;
constexpr double kNoTrust = 0.01;
constexpr double kTrust = 1;
constexpr std::size_t kRecent = 4;  // steps from which a new fit starts
// A link without latency still has one for the fit to scale.
constexpr double kLeastLatency = 2e-5;
constexpr double kLeastDeviation = 0.05;  // relative; what is nearer is no outlier
// A link is not taken to be faster than this times what it was, or what transfers have reached.
// Where latency hides the bytes, or other work of the machine hides both, fits have no limit of
// their own, and a link that seems to have none would be sent everything.
constexpr double kBelief = 2;
// Only messages of which bytes should take so long, or that are so large, show that a link is
// faster than it was known to be: what is shorter may go through at once where a queue, a token
// bucket or a socket's memory takes it in, and says nothing about what longer ones would take.
constexpr double kTellingSeconds = 0.02;
constexpr double kTellingBytes = 2e6;
// Share of a transfer that is taken for latency at most when it is to show a rate: latencies waver.
constexpr double kMostWaiting = 0.75;
// How much longer bytes must take than latency for a transfer to move a rate that is known.
constexpr double kMostlyBytes = 2;
// A change of less than this, in logarithms, is none: fits follow it, and noise brings it about.
constexpr double kLeastChange = 0.35;
constexpr double kMostAtOnce = 10;  // times, in one of several rounds of a fit
// By how much less transfers must be off for two causes to be taken for a change instead of one.
constexpr double kMuchBetter = 0.5;
// Kinds that carry less than this share of the bytes that the busiest one does, such as that of the
// ranks' records, have no rate of their own: whatever delays them would be booked as bytes. (Not of
// the time: one whose rate is taken to be much too high would seem to need none, and stay so.)
constexpr double kShowingShare = 0.1;

void write(Numbers& out, const Link& link) {
  out.insert(out.end(), {link.bytes_per_second, link.latency.count()});
}

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kTiny = std::numeric_limits<double>::min();

// A link without a limit has an infinite rate.
Link read_link(NumberReader& in) {
  const double rate = in.next(kTiny, kInfinite);
  return {.bytes_per_second = rate, .latency = Seconds(in.next(0))};
}

template <typename Transfers>
void write_transfers(Numbers& out, const Transfers& transfers) {
  out.push_back(static_cast<double>(transfers.size()));
  for (const Transfer& transfer : transfers) {
    out.insert(out.end(), {static_cast<double>(transfer.collective), transfer.cost.steps,
                           transfer.cost.bytes, transfer.seconds.count()});
  }
}

std::vector<Transfer> read_transfers(NumberReader& in) {
  std::vector<Transfer> transfers(in.count(4));
  for (Transfer& transfer : transfers) {
    const auto collective =
        static_cast<Collective>(in.whole(0, static_cast<std::int64_t>(Collective::swap)));
    const double steps = in.next(0);
    const double bytes = in.next(0);
    transfer = {collective, {steps, bytes}, Seconds(in.next(kTiny))};
  }
  return transfers;
}

bool limited(const Link& link) { return std::isfinite(link.bytes_per_second); }

// Where a fit can start from: it scales a rate, and there is nothing to scale in an infinite one.
Link start_of_fit(const Link& link) {
  return limited(link) ? link : Link{.bytes_per_second = kGuessedRate, .latency = link.latency};
}

}  // namespace

NetworkEstimate::Drift::Drift(const Link& from, const Link& to)
    : latency(std::log(std::max(kLeastLatency, to.latency.count()) /
                       std::max(kLeastLatency, from.latency.count()))),
      rate(std::log(to.bytes_per_second / from.bytes_per_second)) {}

bool NetworkEstimate::tells(const Transfer& transfer, const Kind& kind) {
  if (kind.trust < kTrust) return true;  // of what is only guessed anything tells more
  return transfer.cost.bytes >= std::min(kTellingBytes, kTellingSeconds * kind.fastest);
}

// Bytes per second that a quarter of the transfers reached, of those that can tell, without what
// they should have waited: behind a long latency a link would seem slow whatever its rate.
double NetworkEstimate::reached(const Kind& kind, double hidden) {
  std::vector<double> rates;
  for (const Transfer& transfer : kind.window) {
    if (!tells(transfer, kind)) continue;
    const double seconds = transfer.seconds.count();
    const double waiting = transfer.cost.steps * kind.before.latency.count() * (1 - hidden);
    rates.push_back(transfer.cost.bytes / (seconds - std::min(waiting, kMostWaiting * seconds)));
  }
  if (rates.empty()) return 0;
  const auto quarter = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 4);
  std::nth_element(rates.begin(), quarter, rates.end(), std::greater<>());
  return *quarter;
}

double NetworkEstimate::Multiples::size() const {
  return std::max(std::abs(std::log(latency)), std::abs(std::log(per_byte)));
}

// How fast a kind is taken to be, at most.
double NetworkEstimate::believed(const Kind& kind, double hidden) {
  return kBelief * std::max(kind.fastest, reached(kind, hidden));
}

Link NetworkEstimate::scaled(const Link& link, const Multiples& by) {
  return {.bytes_per_second = link.bytes_per_second / by.per_byte,
          .latency = Seconds(std::max(kLeastLatency, link.latency.count()) * by.latency)};
}

std::string describe(const NetworkChange& change) {
  char factor[32];
  std::snprintf(factor, sizeof factor, "%.2f",
                change.of_latency ? change.factor : 1 / change.factor);
  return concat(change.of_latency ? "the latency" : "the rate", " of the network is ", factor,
                " times what it was");
}

NetworkEstimate::NetworkEstimate(const Extent& extent)
    : network_(extent, {.bytes_per_second = kGuessedRate, .latency = Seconds(kGuessedLatency)},
               Origin::derived) {
  restart(kNoTrust);
}

void NetworkEstimate::start_from(const Network& network) {
  network_ = network;
  known_ = true;
  derive_unlimited();
  restart(kTrust);
}

// That there is no limit nobody has measured: the first transfers tell, of all kinds.
void NetworkEstimate::derive_unlimited() {
  for (const Collective collective : kPricedCollectives) {
    Fit fit = network_.fit(collective);
    if (limited(fit.link)) continue;
    fit.origin = Origin::derived;
    network_.set(collective, fit);
  }
}

void NetworkEstimate::restart(double trust) {
  for (const Collective collective : kPricedCollectives) {
    const Link& known = network_.fit(collective).link;
    const Link link = start_of_fit(known);
    kind(collective) = {.before = link,
                        .trust = limited(known) ? trust : kNoTrust,
                        .fastest = link.bytes_per_second,
                        .window = {}};
  }
  latency_ = {};
  rate_ = {};
}

// How fast a kind is known to be: what is only believed does not count, or belief would breed more.
// One that is not in use is known to be faster by as much as others have shown to be.
double NetworkEstimate::seen(Collective collective) {
  const Kind& of = kind(collective);
  if (!of.window.empty()) {
    const Fit& fit = network_.fit(collective);
    return std::min(fit.link.bytes_per_second, std::max(of.fastest, reached(of, fit.hidden)));
  }
  double gain = 1;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    const double hidden = network_.fit(kPricedCollectives[i]).hidden;
    gain = std::max(gain, reached(kinds_[i], hidden) / kinds_[i].fastest);
  }
  return std::min(network_.fit(collective).link.bytes_per_second, gain * of.fastest);
}

void NetworkEstimate::remember(Numbers& out) const {
  out.push_back(known_ ? 1 : 0);
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = network_.fit(collective);
    write(out, fit.link);
    out.push_back(static_cast<double>(fit.origin));
    out.push_back(fit.hidden);
  }
  for (const Kind& kind : kinds_) {
    write(out, kind.before);
    out.insert(out.end(), {kind.trust, kind.fastest});
    write_transfers(out, kind.window);
  }
  out.push_back(static_cast<double>(recent_.size()));
  for (const std::vector<Transfer>& step : recent_) write_transfers(out, step);
  latency_.remember(out);
  rate_.remember(out);
}

void NetworkEstimate::recall(NumberReader& in) {
  known_ = in.flag();
  for (const Collective collective : kPricedCollectives) {
    const Link link = read_link(in);
    const auto origin =
        static_cast<Origin>(in.whole(0, static_cast<std::int64_t>(Origin::measured)));
    network_.set(collective, {.link = link, .origin = origin, .hidden = in.next(0, 1)});
  }
  derive_unlimited();
  for (Kind& kind : kinds_) {
    const Link before = read_link(in);
    const double trust = in.next(0, kTrust);
    const double fastest = in.next(kTiny, kInfinite);
    kind.before = start_of_fit(before);
    kind.trust = limited(before) ? trust : kNoTrust;
    kind.fastest = std::isfinite(fastest) ? fastest : kind.before.bytes_per_second;
    const std::vector<Transfer> window = read_transfers(in);
    kind.window.assign(window.begin(), window.end());
  }
  recent_.clear();
  for (std::size_t left = in.count(); left > 0; --left) recent_.push_back(read_transfers(in));
  latency_.recall(in);
  rate_.recall(in);
}

std::size_t NetworkEstimate::index(Collective collective) {
  const auto found = std::ranges::find(kPricedCollectives, collective);
  return static_cast<std::size_t>(found - kPricedCollectives.begin());
}

NetworkEstimate::Kind& NetworkEstimate::kind(Collective collective) {
  return kinds_[index(collective)];
}

std::optional<NetworkChange> NetworkEstimate::observe(std::span<const Transfer> transfers) {
  recent_.emplace_back(transfers.begin(), transfers.end());
  if (recent_.size() > kRecent) recent_.pop_front();
  const Moved moved = look_for_change(transfers);
  if (moved.latency || moved.rate) {
    const Multiples change = common_change(moved);
    if (change.size() >= kLeastChange) return start_anew(change);
  }
  for (const Transfer& transfer : transfers) add(transfer);
  fit_kinds();
  follow();
  return std::nullopt;
}

void NetworkEstimate::add(const Transfer& transfer) {
  Kind& of = kind(transfer.collective);
  if (of.window.empty()) {
    of.fastest = seen(transfer.collective);
    const Fit& known = network_.fit(transfer.collective);
    if (known.origin == Origin::derived) of.before = start_of_fit(known.link);
  }
  of.window.push_back(transfer);
  if (of.window.size() > kWindow) of.window.pop_front();
}

NetworkEstimate::Sample NetworkEstimate::sample(const Transfer& transfer, const Fit& known) {
  const Link link = start_of_fit(known.link);
  return {.waiting = transfer.cost.steps * std::max(kLeastLatency, link.latency.count()),
          .sending = transfer.cost.bytes / link.bytes_per_second,
          .hidden = known.hidden,
          .seconds = transfer.seconds.count()};
}

std::vector<NetworkEstimate::Sample> NetworkEstimate::scaled(std::vector<Sample> samples,
                                                             const Multiples& by) {
  for (Sample& each : samples) {
    each.waiting *= by.latency;
    each.sending *= by.per_byte;
  }
  return samples;
}

// By how much the transfer in the middle is off, in logarithms.
double NetworkEstimate::misfit(std::span<const Sample> samples) {
  std::vector<double> errors;
  for (const auto& [waiting, sending, hidden, seconds] : samples) {
    const double expected = std::max(waiting, sending + waiting * (1 - hidden));
    errors.push_back(std::abs(std::log(seconds / expected)));
  }
  return median(errors);
}

// Latency and time per byte as multiples (a, b) of what was known, from the transfers' errors
// u a + v b + known - seconds, relative to what they took or should have, whichever is longer: or
// the few that a token bucket lets through at once would be off by most, and decide. Huber's
// weights, three rounds. A transfer that is all latency says nothing about bytes, one that is not
// hides a share of its latency. And one that is mostly latency says nothing about a rate that is
// known, nor one that is as much latency as bytes: what it took beyond that is no matter of bytes.
NetworkEstimate::Multiples NetworkEstimate::fit(std::span<const Sample> samples, double trust,
                                                const Moved& may, double least_b) {
  double a = 1;
  double b = 1;
  struct Parts {
    double waiting;
    double sending;
    double known;
  };
  const auto parts = [&](const Sample& sample) -> Parts {
    const auto [waiting, sending, hidden, seconds] = sample;
    const bool all_latency = a * waiting * hidden > b * sending;
    const bool of_known_rate = trust >= kTrust && kMostlyBytes * a * waiting > b * sending;
    Parts parts{all_latency ? waiting : waiting * (1 - hidden), all_latency ? 0 : sending, 0};
    if (!may.rate || of_known_rate) parts.known += b * std::exchange(parts.sending, 0);
    if (!may.latency) parts.known += a * std::exchange(parts.waiting, 0);
    return parts;
  };
  struct Weighed {
    double scale;  // seconds
    double weight;
  };
  std::vector<Weighed> weighed(samples.size());
  const auto weigh = [&] {
    std::vector<double> errors;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Parts part = parts(samples[i]);
      const double expected = a * part.waiting + b * part.sending + part.known;
      weighed[i].scale = std::max(expected, samples[i].seconds);
      errors.push_back(std::abs(expected - samples[i].seconds) / weighed[i].scale);
    }
    const double limit = 2.5 * std::max(kLeastDeviation, 1.4826 * median(errors));
    for (std::size_t i = 0; i < errors.size(); ++i) {
      weighed[i].weight = errors[i] <= limit ? 1.0 : limit / errors[i];
    }
  };
  for (int round = 0; round < 3; ++round) {
    weigh();
    double uu = trust, vv = trust, uv = 0, u1 = trust, v1 = trust;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const Parts part = parts(samples[i]);
      const auto [scale, weight] = weighed[i];
      const double u = part.waiting / scale;
      const double v = part.sending / scale;
      const double rest = (samples[i].seconds - part.known) / scale;
      uu += weight * u * u;
      vv += weight * v * v;
      uv += weight * u * v;
      u1 += weight * u * rest;
      v1 += weight * v * rest;
    }
    const double determinant = uu * vv - uv * uv;
    b = std::max((v1 * uu - u1 * uv) / determinant, least_b);
    a = (u1 - uv * b) / uu;
    if (!(a >= 0)) {  // less than nothing: all of it is the bytes'
      a = 0;
      b = std::max(v1 / vv, least_b);
    }
  }
  return {a, b};
}

// Which kinds carry enough, at present, for their transfers to tell a rate; of a guess any tells
// more. Rates of the others follow.
NetworkEstimate::PerKind NetworkEstimate::showing_rate() const {
  std::array<double, kPricedCollectives.size()> carried{};
  for (const std::vector<Transfer>& step : recent_) {
    for (const Transfer& transfer : step) {
      carried[index(transfer.collective)] += transfer.cost.bytes;
    }
  }
  const double most = std::ranges::max(carried);
  PerKind showing{};
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].window.empty()) continue;
    showing[i] = kinds_[i].trust < kTrust || carried[i] >= kShowingShare * most;
  }
  return showing;
}

void NetworkEstimate::fit_kinds() {
  const PerKind showing = showing_rate();
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].window.empty()) continue;
    fit_kind(kPricedCollectives[i], {.latency = true, .rate = showing[i]});
  }
}

void NetworkEstimate::fit_kind(Collective collective, const Moved& may) {
  Kind& of = kind(collective);
  const double hidden = network_.fit(collective).hidden;
  Link before = of.before;
  if (!may.rate) before.bytes_per_second = network_.fit(collective).link.bytes_per_second;
  const Fit known{.link = before, .hidden = hidden};
  std::vector<Sample> samples;
  for (const Transfer& transfer : of.window) samples.push_back(sample(transfer, known));
  const double least_b = before.bytes_per_second / believed(of, hidden);
  const Link fitted = scaled(before, fit(samples, of.trust, may, least_b));
  if (of.trust < kTrust) of.before = fitted;  // a guess may be far off: what follows is nearer
  network_.set_measured(collective, fitted, hidden);
  known_ = true;
}

// How the kinds in use have moved, in logarithms.
NetworkEstimate::Drift NetworkEstimate::drift() const {
  const PerKind showing = showing_rate();
  Drift sum(0, 0);
  int in_use = 0;
  int showing_rate = 0;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i].window.empty()) continue;
    const Drift drift(kinds_[i].before, network_.fit(kPricedCollectives[i]).link);
    sum.latency += drift.latency;
    ++in_use;
    if (!showing[i]) continue;
    sum.rate += drift.rate;
    ++showing_rate;
  }
  return {sum.latency / std::max(1, in_use), sum.rate / std::max(1, showing_rate)};
}

// How the kinds in use have moved, the others have too; and how those have moved that show a rate,
// those that do not.
void NetworkEstimate::follow() {
  const Drift moved = drift();
  const PerKind showing = showing_rate();
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    Fit fit = network_.fit(kPricedCollectives[i]);
    const bool in_use = !kinds_[i].window.empty();
    if (in_use ? showing[i] : fit.origin == Origin::derived) continue;
    const Link& before = kinds_[i].before;
    fit.link.bytes_per_second = before.bytes_per_second * std::exp(moved.rate);
    if (!in_use) fit.link.latency = before.latency * std::exp(moved.latency);
    network_.set(kPricedCollectives[i], fit);
  }
  network_.derive();
}

NetworkEstimate::Moved NetworkEstimate::look_for_change(std::span<const Transfer> transfers) {
  if (!known_) return {};
  struct Sum {
    double seconds = 0;
    double expected = 0;
  };
  Sum mostly_latency;
  Sum mostly_bytes;
  for (const Transfer& transfer : transfers) {
    const Link& link = network_.fit(transfer.collective).link;
    const Price expected = price(transfer.cost, network_.fit(transfer.collective));
    // One that is too fast to be believed stays so, and is no change every time.
    const Kind& of = kind(transfer.collective);
    const bool at_limit = link.bytes_per_second > 0.99 * kBelief * of.fastest;
    if (at_limit && transfer.seconds < expected.total() && !tells(transfer, of)) continue;
    Sum& sum = expected.waiting > expected.sending ? mostly_latency : mostly_bytes;
    sum.seconds += transfer.seconds.count();
    sum.expected += expected.total().count();
  }
  const auto moved = [](ChangeDetector& detector, const Sum& sum) {
    if (!(sum.expected > 0) || !(sum.seconds > 0)) return false;
    return detector.observe(std::log(sum.seconds / sum.expected)).has_value();
  };
  return {.latency = moved(latency_, mostly_latency), .rate = moved(rate_, mostly_bytes)};
}

// By how much latency and time per byte of all kinds have changed, from the recent transfers alone:
// one pair for all, because only several sizes can tell one from the other, and a kind may have
// one. What was not seen to move stays, unless that explains the transfers much worse: a rate that
// is lost is first seen by messages that were mostly latency.
NetworkEstimate::Multiples NetworkEstimate::common_change(const Moved& moved) const {
  std::vector<Sample> samples;
  for (const std::vector<Transfer>& step : recent_) {
    for (const Transfer& transfer : step) {
      samples.push_back(sample(transfer, network_.fit(transfer.collective)));
    }
  }
  const auto fitted = [&](const Moved& may, Multiples all) {
    for (int round = 0; round < 16; ++round) {  // each time from where it was
      const Multiples more = fit(scaled(samples, all), kNoTrust, may, /*least_b=*/0);
      // Never to nothing at once, from where there is no way back.
      all.latency *= std::clamp(more.latency, 1 / kMostAtOnce, kMostAtOnce);
      all.per_byte *= std::clamp(more.per_byte, 1 / kMostAtOnce, kMostAtOnce);
    }
    return all;
  };
  const auto off = [&](const Multiples& by) { return misfit(scaled(samples, by)); };
  constexpr Multiples kNone{1, 1};
  constexpr Moved kAny{.latency = true, .rate = true};
  Multiples both = fitted(kAny, kNone);
  if (moved.latency && moved.rate) return both;
  // Where bytes hide behind latency, a fit that starts from there does not see that they no longer
  // do: another one starts from where they are all that counts.
  if (moved.latency) {
    const Multiples from_bytes = fitted(kAny, {1, slower_bytes(samples)});
    if (off(from_bytes) < off(both)) both = from_bytes;
  }
  const Multiples one = fitted(moved, kNone);
  return off(both) < kMuchBetter * off(one) ? both : one;
}

// How much longer bytes would take if transfers were nothing else, in the middle.
double NetworkEstimate::slower_bytes(std::span<const Sample> samples) {
  std::vector<double> factors;
  for (const Sample& each : samples) {
    if (each.sending > 0) factors.push_back(each.seconds / each.sending);
  }
  return factors.empty() ? 1 : median(factors);
}

// Windows begin with the steps that gave the change away, also if nothing is reported because none
// of it is believed.
std::optional<NetworkChange> NetworkEstimate::start_anew(const Multiples& change) {
  const Network old = network_;
  std::array<double, kPricedCollectives.size()> fastest;
  std::ranges::transform(kPricedCollectives, fastest.begin(), [&](auto of) { return seen(of); });
  restart(kTrust);
  for (const std::vector<Transfer>& step : recent_) {
    for (const Transfer& transfer : step) add(transfer);
  }
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    Kind& of = kinds_[i];
    of.fastest = fastest[i];
    if (of.window.empty()) continue;
    const double hidden = old.fit(kPricedCollectives[i]).hidden;
    Link link = scaled(of.before, change);
    link.bytes_per_second = std::min(link.bytes_per_second, believed(of, hidden));
    network_.set_measured(kPricedCollectives[i], link, hidden);
  }
  const Drift gone = drift();
  follow();
  // All of them before one is changed: kinds that are not in use go by the others.
  std::ranges::transform(kPricedCollectives, fastest.begin(), [&](auto of) { return seen(of); });
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    kinds_[i].fastest = fastest[i];
    kinds_[i].before = network_.fit(kPricedCollectives[i]).link;
  }
  const bool of_latency = std::abs(gone.latency) > std::abs(gone.rate);
  const double more = of_latency ? gone.latency : -gone.rate;
  if (std::abs(more) < kLeastChange) return std::nullopt;
  return NetworkChange{.of_latency = of_latency, .factor = std::exp(more)};
}

}  // namespace tidegate
