// SPDX-License-Identifier: Apache-2.0
// What MPI makes of the network between its ranks: latency and rate of every collective.
//
//   mpirun -n 4 mpi_probe            a table
//   mpirun -n 4 mpi_probe --json     what `tidegate plan --probe` reads
#include <cstdio>
#include <exception>
#include <string_view>

#include "tidegate/mpi/engine.h"
#include "tidegate/network/calibration.h"

namespace tidegate {
namespace {

void show_table(const Calibration& found) {
  std::printf("%-14s %12s %14s  %s\n", "collective", "Mbit/s", "latency (ms)", "origin");
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = found.network.fit(collective);
    std::printf("%-14s %12.4g %14.4g  %s\n", name(collective).data(),
                fit.link.bytes_per_second * 8 / 1e6, fit.link.latency.count() * 1e3,
                name(fit.origin).data());
  }
  std::printf("Measured through MPI between %d ranks on %d hosts in %.1f s.\n",
              found.network.extent().ranks, found.network.extent().hosts, found.took.count());
}

void show_json(const Calibration& found) {
  std::printf("{\"v\": 1, \"kind\": \"probe\", \"engine\": \"mpi\", \"ranks\": %d, \"hosts\": %d, ",
              found.network.extent().ranks, found.network.extent().hosts);
  std::printf("\"seconds\": %.6g, \"network\": {", found.took.count());
  const char* separator = "";
  for (const Collective collective : kPricedCollectives) {
    const Fit& fit = found.network.fit(collective);
    std::printf("%s\"%s\": {\"mbit\": %.6g, \"latency_ms\": %.6g, \"origin\": \"%s\"}", separator,
                name(collective).data(), fit.link.bytes_per_second * 8 / 1e6,
                fit.link.latency.count() * 1e3, name(fit.origin).data());
    separator = ", ";
  }
  std::printf("}}\n");
}

int run(bool json) {
  MpiEngine engine(MPI_COMM_WORLD, find_hosts(MPI_COMM_WORLD));
  if (engine.place().ranks == 1) {
    std::fprintf(stderr, "mpi_probe: a network has two ends: mpirun -n 4 mpi_probe\n");
    return 2;
  }
  const Calibration found = calibrate(engine);
  if (engine.place().rank == 0) (json ? show_json : show_table)(found);
  return 0;
}

}  // namespace
}  // namespace tidegate

int main(int argc, char** argv) {
  tidegate::MpiRuntime runtime(argc, argv);
  const bool json = argc == 2 && std::string_view(argv[1]) == "--json";
  if (argc > 1 && !json) {
    std::fprintf(stderr, "mpi_probe: the only option is --json\n");
    return 2;
  }
  try {
    return tidegate::run(json);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_probe: %s\n", error.what());
    tidegate::MpiRuntime::abort(1);
  }
}
