// SPDX-License-Identifier: Apache-2.0
// A job in which the last rank stops answering. The others must say so in time, and the whole job
// must end: a program that only catches the error and returns leaves nobody behind.
#include <iostream>
#include <thread>
#include <vector>

#include "tidegate/base/error.h"
#include "tidegate/mpi/engine.h"

int main(int argc, char** argv) {
  tidegate::MpiRuntime runtime(argc, argv);
  static std::vector<std::byte> data(64);
  try {
    tidegate::MpiEngine engine(MPI_COMM_WORLD, std::chrono::milliseconds(1000));
    if (engine.place().rank == engine.place().ranks - 1) {
      std::this_thread::sleep_for(std::chrono::hours(1));
    }
    engine.wait(engine.start(tidegate::AllReduce{data}));
  } catch (const tidegate::Error& error) {
    std::cerr << error.what() << std::endl;
    return 3;
  }
  return 0;
}
