#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target with libFuzzer, under the address and undefined behaviour sanitizers, and
# tells how many inputs each has seen.
#
#   tools/fuzz.sh [SECONDS_PER_TARGET] [TARGET...]        standard: 60, all
#
# What is found new goes to build/fuzz/corpus; an input that brings a target down is left in
# build/fuzz/failing, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || {
  echo "fuzz: \"$seconds\" is no number of seconds; for example: tools/fuzz.sh 60 wire_decode" >&2
  exit 2
}
targets=("${@:2}")
if [[ ${#targets[@]} -eq 0 ]]; then
  for source in tests/fuzz/*.cpp; do
    [[ $source == */replay_main.cpp ]] || targets+=("$(basename "$source" .cpp)")
  done
fi
for target in "${targets[@]}"; do
  [[ -f tests/fuzz/$target.cpp ]] || {
    echo "fuzz: there is no target $target; see tests/fuzz" >&2
    exit 2
  }
done
command -v clang++ >/dev/null || {
  echo "fuzz: libFuzzer comes with clang; run: apt-get install clang" >&2
  exit 2
}

cmake=${CMAKE_EXECUTABLE:-/usr/bin/cmake}
"$cmake" --preset fuzz >/dev/null
"$cmake" --build --preset fuzz --target "${targets[@]/#/fuzz_}"

mkdir -p build/fuzz/failing
failed=0 total=0
printf '%-16s %14s %12s  %s\n' target executions per-second outcome
for target in "${targets[@]}"; do
  found=build/fuzz/corpus/$target log=build/fuzz/$target.log
  mkdir -p "$found"
  outcome=clean
  build/fuzz/tests/fuzz_"$target" -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 \
    -rss_limit_mb=4096 -artifact_prefix="build/fuzz/failing/$target-" \
    "$found" "tests/fuzz/corpus/$target" >"$log" 2>&1 || {
    outcome="FAILED, see $log"
    failed=1
  }
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
  printf '%-16s %14s %12s  %s\n' "$target" "${runs:-?}" "${rate:-?}" "$outcome"
  total=$((total + ${runs:-0}))
done
printf '%-16s %14s\n' together "$total"
exit "$failed"
