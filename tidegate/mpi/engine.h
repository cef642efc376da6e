// SPDX-License-Identifier: Apache-2.0
// Ranks as MPI processes. A library of its own (tidegate::mpi), so that libtidegate needs no MPI.
//
//   int main(int argc, char** argv) {
//     tidegate::MpiRuntime runtime(argc, argv);
//     tidegate::MpiEngine engine(MPI_COMM_WORLD);
//     tidegate::Session session(engine.place(), {.options = {{"method", "bf16"}}});
//     ...
//
// MPI moves bytes only while somebody calls it: collectives that were started make progress inside
// of start() and wait(), not while the caller computes.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <map>

#include "tidegate/comm/engine.h"

namespace tidegate {

// MPI from here to the end of the scope. For programs that do not call MPI_Init themselves.
class MpiRuntime {
 public:
  // Takes MPI's own arguments, if there are any, out of argc and argv.
  MpiRuntime(int& argc, char**& argv);
  // Waits for all ranks to come here; or, after an engine's time-out, ends the job on all of them.
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  // Ends all ranks of the job: those that wait for this one would do so until they time out.
  [[noreturn]] static void abort(int exit_code);
};

class MpiEngine : public Engine {
 public:
  static constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(5);

  // The ranks of `ranks`, in communicators of the engine's own: the caller may go on using his.
  // Collective: Error{timeout} if a rank does not come, as after wait(). Used by one thread at a
  // time. Without a topology every rank has a host of its own.
  explicit MpiEngine(MPI_Comm ranks, std::chrono::milliseconds timeout = kPatience);
  MpiEngine(MPI_Comm ranks, Topology topology, std::chrono::milliseconds timeout = kPatience);
  // Before MPI_Finalize. Collective, unless an operation is pending.
  ~MpiEngine() override;
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  Place place() const override { return place_; }
  const Topology& topology() const override { return topology_; }

  // MPI does not compare what ranks ask for: different requests end in Error{peer}, in
  // Error{timeout}, or in wrong bytes, which messages with a checksum (wire/message.h) reveal.
  Operation start(const Request& request) override;

  // After Error{timeout} MPI may still write into the bytes of the operation whenever it is called,
  // because its collectives cannot be cancelled: keep them, and end the job. All later waits for
  // what is not there yet fail at once.
  void wait(Operation operation) override;

 private:
  struct Pending {
    Request request;
    MPI_Request sending = MPI_REQUEST_NULL;    // of SendReceive
    MPI_Request receiving = MPI_REQUEST_NULL;  // of SendReceive; all of any other request
  };

  MPI_Comm communicator(const Request& request) const;
  void begin(const AllReduce& request, MPI_Comm ranks, Pending& pending);
  void begin(const AllGather& request, MPI_Comm ranks, Pending& pending);
  void begin(const Broadcast& request, MPI_Comm ranks, Pending& pending);
  void begin(const AllToAll& request, MPI_Comm ranks, Pending& pending);
  void begin(const SendReceive& request, MPI_Comm ranks, Pending& pending);
  void begin(const Idle&, MPI_Comm, Pending&) {}
  void begin(const Foreign&, MPI_Comm, Pending&) {}  // check() has refused it
  bool finished(Pending& pending) const;
  void check_length(const SendReceive& request, const MPI_Status& status) const;
  [[noreturn]] void give_up(const Pending& pending);
  void check_code(int code, const Request& request) const;

  const Topology topology_;
  const std::chrono::milliseconds timeout_;
  std::array<MPI_Comm, 3> groups_;  // by Group; MPI_COMM_NULL for those this rank is not in
  Place place_;
  MPI_Op add_f16_ = MPI_OP_NULL;
  MPI_Op add_bf16_ = MPI_OP_NULL;
  Operation last_ = 0;
  std::array<int, 3> messages_{};  // sent and received so far, by Group: equal on all its ranks
  std::map<Operation, Pending> pending_;
  bool gave_up_ = false;
};

// Which ranks share memory, and so a host. Collective; Error{timeout} as in the constructor.
Topology find_hosts(MPI_Comm ranks, std::chrono::milliseconds timeout = MpiEngine::kPatience);

}  // namespace tidegate
