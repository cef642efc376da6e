// SPDX-License-Identifier: Apache-2.0
#include "tidegate/mpi/engine.h"

#include <atomic>
#include <climits>
#include <cstdlib>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/comm/add.h"

namespace tidegate {
namespace {

// Polls without a pause, about as long as a message between processes of one host takes. Then
// pauses: MPI has no wait with a time-out, and ranks that poll without end take the CPU from those
// they wait for wherever there are more ranks than cores.
constexpr int kEagerPolls = 200;
constexpr std::chrono::microseconds kPause{20};

// The least MPI_TAG_UB that the standard allows.
constexpr int kHighestTag = 32767;

// An engine of this process has given up waiting, with collectives of MPI still under way.
std::atomic<bool> job_is_lost = false;

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text;
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check_setup(int code, const char* what) {
  if (code != MPI_SUCCESS) fail(Fault::peer, what, ": ", text_of(code));
}

// Every MPI function but these two ends the process when it is called too early or too late.
bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

void check_running() {
  if (mpi_runs()) return;
  fail(Fault::config, "MPI is not running: construct a tidegate::MpiRuntime (or call ",
       "MPI_Init_thread) first, and let it outlive every MpiEngine");
}

Place place_in(MPI_Comm ranks) {
  Place place;
  check_setup(MPI_Comm_rank(ranks, &place.rank), "MPI_Comm_rank");
  check_setup(MPI_Comm_size(ranks, &place.ranks), "MPI_Comm_size");
  return place;
}

Topology all_apart(MPI_Comm ranks) {
  check_running();
  return Topology(place_in(ranks).ranks);
}

// Asks `finished` until it says yes; false once the time is up.
template <typename Finished>
bool poll(const Finished& finished, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int polls = 1; !finished(); ++polls) {
    if (polls < kEagerPolls) continue;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

// Until all ranks have come to set `what` up. MPI makes communicators by calls that block for as
// long as a rank is missing; with all ranks here they have nothing to wait for.
void meet(MPI_Comm ranks, const Place& place, std::chrono::milliseconds timeout, const char* what) {
  MPI_Request all_are_here = MPI_REQUEST_NULL;
  check_setup(MPI_Ibarrier(ranks, &all_are_here), "MPI_Ibarrier");
  const auto finished = [&] {
    int done = 0;
    check_setup(MPI_Test(&all_are_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  };
  if (poll(finished, timeout)) return;
  job_is_lost = true;
  fail(Fault::timeout, "rank ", place.rank, " of ", place.ranks, " waited ", timeout.count(),
       " ms in ", what, ", and not all ranks have come: every rank of the communicator must call ",
       "it, in the same order. End the job (MpiRuntime does, when it goes out of scope) and look ",
       "at the output of the others");
}

// Errors in it are returned, so that they can be thrown.
MPI_Comm own_copy(MPI_Comm ranks) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_setup(MPI_Comm_dup(ranks, &copy), "MPI_Comm_dup");
  check_setup(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

// The ranks that give the same color, in the order of their ranks. Inherits the error handler.
MPI_Comm split(MPI_Comm ranks, int color, int rank) {
  MPI_Comm part = MPI_COMM_NULL;
  check_setup(MPI_Comm_split(ranks, color, rank, &part), "MPI_Comm_split");
  return part;
}

template <Element kElement>
void add_for_mpi(void* from, void* into, int* elements, MPI_Datatype*) {
  const std::size_t bytes = static_cast<std::size_t>(*elements) * bytes_of(kElement);
  const std::span sum(static_cast<std::byte*>(into), bytes);
  add_elements({static_cast<const std::byte*>(from), bytes}, sum, kElement, sum);
}

// Commutative, as an addition of two numbers is; MPI may then choose among more algorithms.
template <Element kElement>
MPI_Op make_addition() {
  MPI_Op addition = MPI_OP_NULL;
  check_setup(MPI_Op_create(add_for_mpi<kElement>, 1, &addition), "MPI_Op_create");
  return addition;
}

int count_of(std::size_t count, const Request& request) {
  if (count > static_cast<std::size_t>(INT_MAX)) {
    fail(Fault::unsupported, describe(request), ": MPI counts up to ", INT_MAX, ", but this takes ",
         count, "; make smaller buckets");
  }
  return static_cast<int>(count);
}

}  // namespace

MpiRuntime::MpiRuntime(int& argc, char**& argv) {
  // Whoever drives an engine need not be the main thread, where MPI allows that.
  int provided = MPI_THREAD_SINGLE;
  check_setup(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
}

MpiRuntime::~MpiRuntime() {
  if (job_is_lost) abort(EXIT_FAILURE);  // MPI_Finalize would wait for a rank that may never come
  MPI_Finalize();
}

void MpiRuntime::abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort does not return, but is not declared so
}

Topology find_hosts(MPI_Comm ranks, std::chrono::milliseconds timeout) {
  check_running();
  const Place place = place_in(ranks);
  meet(ranks, place, timeout, "find_hosts");
  MPI_Comm host = MPI_COMM_NULL;
  check_setup(MPI_Comm_split_type(ranks, MPI_COMM_TYPE_SHARED, place.rank, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
  int leader = place.rank;
  check_setup(MPI_Bcast(&leader, 1, MPI_INT, 0, host), "MPI_Bcast");
  MPI_Comm_free(&host);
  std::vector<int> leaders(static_cast<std::size_t>(place.ranks));
  check_setup(MPI_Allgather(&leader, 1, MPI_INT, leaders.data(), 1, MPI_INT, ranks),
              "MPI_Allgather");
  return Topology(leaders);
}

MpiEngine::MpiEngine(MPI_Comm ranks, std::chrono::milliseconds timeout)
    : MpiEngine(ranks, all_apart(ranks), timeout) {}

MpiEngine::MpiEngine(MPI_Comm ranks, Topology topology, std::chrono::milliseconds timeout)
    : topology_(std::move(topology)), timeout_(timeout) {
  check_running();
  place_ = place_in(ranks);
  if (topology_.ranks() != place_.ranks) {
    fail(Fault::config, "a topology of ", topology_.ranks(), " ranks for a communicator of ",
         place_.ranks);
  }
  meet(ranks, place_, timeout_, "MpiEngine's constructor");
  const MPI_Comm all = own_copy(ranks);
  const int rank = place_.rank;
  groups_ = {all, split(all, topology_.leader(rank), rank),
             split(all, topology_.leads(rank) ? 0 : MPI_UNDEFINED, rank)};
  add_f16_ = make_addition<Element::f16>();
  add_bf16_ = make_addition<Element::bf16>();
}

MpiEngine::~MpiEngine() {
  // What is pending still uses the communicators and the operations.
  if (!mpi_runs() || !pending_.empty()) return;
  for (MPI_Comm& group : groups_) {
    if (group != MPI_COMM_NULL) MPI_Comm_free(&group);
  }
  MPI_Op_free(&add_f16_);
  MPI_Op_free(&add_bf16_);
}

MPI_Comm MpiEngine::communicator(const Request& request) const {
  const Group group = round_of(request).group;
  const MPI_Comm ranks = groups_[static_cast<std::size_t>(group)];
  if (ranks == MPI_COMM_NULL) {
    fail(Fault::config, "rank ", place_.rank, " asks for ", describe(request),
         ", but is not one of them");
  }
  return ranks;
}

Engine::Operation MpiEngine::start(const Request& request) {
  Pending pending{request};
  if (!std::holds_alternative<Idle>(request)) {
    const MPI_Comm ranks = communicator(request);
    check(request, place_in(ranks).ranks);
    std::visit([&](const auto& asked) { begin(asked, ranks, pending); }, request);
  }
  pending_.emplace(++last_, pending);
  return last_;
}

void MpiEngine::begin(const AllReduce& request, MPI_Comm ranks, Pending& pending) {
  const int elements = count_of(request.data.size() / bytes_of(request.element), request);
  MPI_Datatype type = MPI_FLOAT;
  MPI_Op addition = MPI_SUM;
  if (request.element != Element::f32) {
    type = MPI_UINT16_T;
    addition = request.element == Element::f16 ? add_f16_ : add_bf16_;
  }
  check_code(MPI_Iallreduce(MPI_IN_PLACE, request.data.data(), elements, type, addition, ranks,
                            &pending.receiving),
             request);
}

void MpiEngine::begin(const AllGather& request, MPI_Comm ranks, Pending& pending) {
  const int bytes = count_of(request.mine.size(), request);
  check_code(MPI_Iallgather(request.mine.data(), bytes, MPI_BYTE, request.all.data(), bytes,
                            MPI_BYTE, ranks, &pending.receiving),
             request);
}

void MpiEngine::begin(const Broadcast& request, MPI_Comm ranks, Pending& pending) {
  const int bytes = count_of(request.data.size(), request);
  check_code(
      MPI_Ibcast(request.data.data(), bytes, MPI_BYTE, request.root, ranks, &pending.receiving),
      request);
}

void MpiEngine::begin(const AllToAll& request, MPI_Comm ranks, Pending& pending) {
  const auto parts = static_cast<std::size_t>(place_in(ranks).ranks);
  const int bytes = count_of(request.send.size() / parts, request);
  check_code(MPI_Ialltoall(request.send.data(), bytes, MPI_BYTE, request.receive.data(), bytes,
                           MPI_BYTE, ranks, &pending.receiving),
             request);
}

void MpiEngine::begin(const SendReceive& request, MPI_Comm ranks, Pending& pending) {
  const int sent = count_of(request.send.size(), request);
  const int received = count_of(request.receive.size(), request);
  // A tag per operation: should two ranks disagree on what comes next, they wait in vain instead of
  // taking one message for another.
  int& messages = messages_[static_cast<std::size_t>(request.group)];
  const int tag = messages;
  messages = messages == kHighestTag ? 0 : messages + 1;
  if (request.from >= 0) {
    check_code(MPI_Irecv(request.receive.data(), received, MPI_BYTE, request.from, tag, ranks,
                         &pending.receiving),
               request);
  }
  if (request.to >= 0) {
    check_code(
        MPI_Isend(request.send.data(), sent, MPI_BYTE, request.to, tag, ranks, &pending.sending),
        request);
  }
}

void MpiEngine::wait(Operation operation) {
  const auto found = pending_.find(operation);
  if (found == pending_.end()) {
    fail(Fault::config, "rank ", place_.rank, " waits for operation ", operation,
         ", which was not started or has been waited for already");
  }
  const auto patience = gave_up_ ? std::chrono::milliseconds(0) : timeout_;
  if (!poll([&] { return finished(found->second); }, patience)) give_up(found->second);
  pending_.erase(found);
}

bool MpiEngine::finished(Pending& pending) const {
  // One after the other: every call makes progress in both.
  for (MPI_Request* part : {&pending.sending, &pending.receiving}) {
    int done = 0;
    MPI_Status status;
    check_code(MPI_Test(part, &done, &status), pending.request);
    if (!done) return false;
    const auto* message = std::get_if<SendReceive>(&pending.request);
    if (message && part == &pending.receiving) check_length(*message, status);
  }
  return true;
}

void MpiEngine::check_length(const SendReceive& request, const MPI_Status& status) const {
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  const std::size_t expected = request.from < 0 ? 0 : request.receive.size();
  if (static_cast<std::size_t>(bytes) == expected) return;
  fail(Fault::peer, "rank ", place_.rank, " got ", bytes, " bytes instead of ", expected, " in ",
       describe(request), ": the ranks were given different settings or gradients");
}

void MpiEngine::give_up(const Pending& pending) {
  const bool first = !gave_up_;
  gave_up_ = true;
  job_is_lost = true;
  if (!first) {
    fail(Fault::timeout, "rank ", place_.rank, " does not wait for ", describe(pending.request),
         " after another operation has timed out");
  }
  fail(Fault::timeout, "rank ", place_.rank, " waited ", timeout_.count(), " ms in ",
       describe(pending.request),
       ": another rank has stopped, is stuck, or needs longer than the engine's time-out. End the ",
       "job (MpiRuntime does, when it goes out of scope) and look at the output of the others");
}

void MpiEngine::check_code(int code, const Request& request) const {
  if (code == MPI_SUCCESS) return;
  fail(Fault::peer, "rank ", place_.rank, ", ", describe(request), ": ", text_of(code));
}

}  // namespace tidegate
