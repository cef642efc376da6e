// SPDX-License-Identifier: Apache-2.0
// A job in which the last rank stops answering: in find_hosts, when engines are set up, or later,
// as its argument says. The others must say so in time, and the whole job must end: a program that
// only catches the error and returns leaves nobody behind.
#include <iostream>
#include <string_view>
#include <thread>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/mpi/engine.h"

void stop_the_last_rank() {
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == ranks - 1) std::this_thread::sleep_for(std::chrono::hours(1));
}

int main(int argc, char** argv) {
  tidegate::MpiRuntime runtime(argc, argv);
  const std::string_view place = argc > 1 ? argv[1] : "";
  constexpr std::chrono::milliseconds kShort(1000);
  constexpr std::chrono::milliseconds kLong = tidegate::MpiEngine::kPatience;
  static std::vector<std::byte> data(64);
  try {
    if (place == "hosts") stop_the_last_rank();
    const auto topology = tidegate::find_hosts(MPI_COMM_WORLD, place == "hosts" ? kShort : kLong);
    if (place == "engine") stop_the_last_rank();
    tidegate::MpiEngine engine(MPI_COMM_WORLD, topology, kShort);
    if (place == "exchange") stop_the_last_rank();
    engine.wait(engine.start(tidegate::AllReduce{data}));
  } catch (const tidegate::Error& error) {
    std::cerr << error.what() << std::endl;
    return 3;
  }
  return 0;
}
