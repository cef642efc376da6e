// SPDX-License-Identifier: Apache-2.0
// A program of a user's over MPI; started without mpirun it is one rank.
#include <vector>

#include "tidegate/mpi/engine.h"
#include "tidegate/session/session.h"

int main(int argc, char** argv) {
  tidegate::MpiRuntime runtime(argc, argv);
  tidegate::MpiEngine engine(MPI_COMM_WORLD, tidegate::find_hosts(MPI_COMM_WORLD));
  tidegate::Session session(engine.place(), {});
  std::vector<float> gradient(100, 2.0f);
  session.submit({.data = std::as_writable_bytes(std::span(gradient)), .last = true});
  session.run(engine);
  return gradient[99] == 2.0f ? 0 : 1;
}
