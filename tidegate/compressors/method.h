// SPDX-License-Identifier: Apache-2.0
// The table of methods. A method is one file with a Compressor and one row; everything that walks
// over methods (tests, prices, command line, policies) walks over methods().
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/base/bucket.h"
#include "tidegate/base/workers.h"
#include "tidegate/comm/exchange.h"
#include "tidegate/kernels/histogram.h"
#include "tidegate/kernels/top.h"

namespace tidegate {

struct Method;
class Network;

// How one bucket is averaged in one step. Equal on all ranks.
struct Choice {
  const Method* method = nullptr;
  double ratio = 1.0;  // share of elements kept, in (0, 1]; for methods whose level is a ratio
  int rank = 0;        // of the matrices sent, for methods whose level is a rank
  Route route = Route::engine;
  bool any_route = false;  // `route` is only the method's first; see cheapest_route
  bool by_host = false;    // sums inside each host first, then the route between one rank of each
  int bits = 0;            // per value, for methods that let one choose
  kernels::Keep keep = kernels::Keep::about;  // of the sparsifiers' selection
  // Sparsifiers: selects at this ratio first, and the level out of that, so that the gain of both
  // is known (GraVAC's multi-level compression). 0 = at once.
  double weaker = 0;
  // Methods that correct momentum (DGC): the optimiser's factor, taken over by the method, and the
  // largest norm of a bucket's gradient over all ranks. 0 = leave it.
  double momentum = 0;
  double clip = 0;
  // What waits goes out at once with a gradient that is sent whole (GraVAC), and not bit by bit.
  bool at_once = false;
  bool operator==(const Choice&) const = default;
};

// "topk 0.01 in 16 bits by allgather"
std::string describe(const Choice& choice);

// What a compressor saw in its last exchange, in unscaled units. Energies are squared norms.
struct Report {
  double gradient_energy = 0;  // what came in
  double sent_energy = 0;
  double residual_energy = 0;  // what waits now
  double weaker_energy = 0;    // of the selection at the choice's weaker ratio, if it has one
  double overlap = 0;          // <gradient, what waited before>
  std::size_t sent_elements = 0;
  bool finite = true;    // of the result, so equal on all ranks
  int root = -1;         // whose selection was used, for methods that have one
  Histogram magnitudes;  // of gradient + residual, if anybody looked at them
};

// What a method keeps between steps besides the residual, by layer name.
using Memory = std::map<std::string, std::vector<float>>;

// The averaging of one bucket. One instance per bucket: its members are scratch space and live
// while an operation on them is pending.
class Compressor {
 public:
  virtual ~Compressor() = default;

  // Replaces bucket.gradient by the mean over ranks. Adds to `residual` what it does not send;
  // `residual` is empty for methods without error feedback.
  virtual Exchange average(Bucket bucket, Choice choice, std::span<float> residual) = 0;

  // The result could not be used (it was not finite): puts back into `residual` what the last
  // exchange took out of it.
  virtual void restore(std::span<float> residual) { (void)residual; }

  // Another method or route comes next: moves into `residual` what waits elsewhere
  // (what an owner holds back). Between steps.
  virtual void settle(std::span<float> residual) { (void)residual; }
  // Adds to `sum` what settle() would move into the residual, and leaves it where it is.
  virtual void add_held_back(std::span<float> sum) const { (void)sum; }
  // The way back, before the first step: takes up what it finds of its own in `all`, which are all
  // elements of the bucket.
  virtual void hold_back(std::span<const float> all) { (void)all; }

  // What it keeps besides, out of and into a memory that outlives it. Called between steps, and
  // before the first one.
  virtual void remember(std::span<const Layer> layers, Memory& memory) const {
    (void)layers, (void)memory;
  }
  virtual void recall(std::span<const Layer> layers, const Memory& memory) {
    (void)layers, (void)memory;
  }

  const Report& report() const { return report_; }

 protected:
  Report report_;
};

enum class Level { none, ratio, rank };
inline constexpr int kHighestRank = 8;

struct Method {
  std::string_view name;
  std::string_view summary;
  Level level = Level::none;
  std::vector<int> bits;      // per value; the first is the default, none if there is no choice
  std::vector<Route> routes;  // the first is the default
  // By owners less is delivered than by the others at the same level: not a matter of price alone.
  bool owners_deliver_less = false;
  bool error_feedback = false;
  bool blind = false;  // chooses what to send without looking at the gradient: learns far slower
  // One rank selects for all: of what the others would have sent, their backlogs tell too little.
  bool one_root = false;
  bool prompt = false;     // sends every element up to rounding: what waits goes with the next step
  bool overflows = false;  // of values that fp32 can hold
  bool whole = false;      // sends 16 bits or more of every element: 16-bit buckets go as they are
  bool corrects_momentum = false;  // Choice::momentum and clip mean something to it
  // What it remembers is each rank's own and adds up, so that the mean may stand for it on all
  // ranks; else it is the same on all ranks.
  bool memory_is_own = false;
  // What an exchange will ask for, so that it can be priced without being run. All-reduces by ring
  // or tree are one round here; comm/routes.h says what becomes of them.
  std::vector<Round> (*rounds)(const Shape& shape, const Choice& choice);
  std::unique_ptr<Compressor> (*make)(Place place, Workers& workers);
  // What would wait behind it (compressors/backlog.h), from the magnitudes of a gradient; null if
  // only trying tells.
  double (*predict_backlog)(const Choice& choice, const Histogram& gradient) = nullptr;
};

std::span<const Method> methods();

// Fails with the list of known names.
const Method& find_method(std::string_view name);
Route parse_route(std::string_view name);

// A choice checked against its row: level (a ratio or a rank) in range, route and bits among the
// method's. "auto" and 0 are the method's defaults; "hosts" or "hosts+ROUTE" = by host.
Choice make_choice(std::string_view method, double level = 1.0, std::string_view route = "auto",
                   int bits = 0);

// The choice with its route settled: the user's, or of all that deliver the same the one by which a
// rank sends the fewest bytes. On a known network it gives way to one that is cheaper by a margin;
// by a larger one where prices were only derived. `present` = what the bucket does now, if
// anything: a route is not left for another of about the same price. Depends on agreed numbers
// only.
Choice cheapest_route(Choice choice, const Shape& shape, const Network* network = nullptr,
                      const Choice* present = nullptr);

// What an exchange by this choice asks of an engine: rings and trees as sends and receives, and by
// host the sums inside hosts around it all. `shape.ranks` = those that run the method; by host, one
// of each.
std::vector<Round> exchange_rounds(const Shape& shape, const Choice& choice);

// k of n: floor(ratio * n), at least one, so that a tiny bucket still gets through.
std::size_t kept_elements(std::size_t elements, double ratio);

// The rows, each in the file of its name.
Method dense_row();
Method fp16_row();
Method bf16_row();
Method topk_row();
Method artopk_star_row();
Method artopk_var_row();
Method powersgd_row();
Method int8_row();
Method int4_row();
Method sign_row();
Method onebit_row();
Method qsgd_row();
Method terngrad_row();
Method lwtopk_row();
Method randomk_row();
Method dgc_row();
Method redsync_row();
Method sidco_row();
Method mstopk_row();

}  // namespace tidegate
