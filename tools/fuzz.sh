#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzz target with libFuzzer, and the command line with mutated arguments and files
# (target cli), as many at a time as there are cores, and tells how many inputs each has seen.
#
#   tools/fuzz.sh [--fast] [SECONDS_PER_TARGET] [TARGET...]        standard: 60, all
#
# Under the address and undefined behaviour sanitizers; --fast goes without them, for volume: then
# only what a target checks by itself is found, and what makes a program crash.
# What is found new goes to build/fuzz/corpus; an input that brings a target down is left in
# build/fuzz/failing, and the exit code is 1.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=fuzz
if [[ ${1:-} == --fast ]]; then
  preset=fuzz-fast
  shift
fi
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
  targets+=(cli)
fi
built=()
for target in "${targets[@]}"; do
  if [[ $target == cli ]]; then
    .venv/bin/python -c "import tidegate" 2>/dev/null || {
      echo "fuzz: the command line is not installed; run: make package" >&2
      exit 2
    }
    continue
  fi
  [[ -f tests/fuzz/$target.cpp ]] || {
    echo "fuzz: there is no target $target; see tests/fuzz" >&2
    exit 2
  }
  built+=("fuzz_$target")
done

if [[ ${#built[@]} -gt 0 ]]; then
  command -v clang++ >/dev/null || {
    echo "fuzz: libFuzzer comes with clang; run: apt-get install clang libclang-rt-dev" >&2
    exit 2
  }
  cmake=${CMAKE_EXECUTABLE:-/usr/bin/cmake}
  "$cmake" --preset "$preset" >/dev/null
  "$cmake" --build --preset "$preset" --target "${built[@]}"
fi

mkdir -p build/fuzz/failing
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT  # bash lets them go on after Ctrl-C

# Where longer inputs only do the same more often.
declare -A longest=([policy_decide]=600 [targets_agree]=1200)

# Runs one target; what it has to tell goes to its log.
fuzz() {
  local target=$1 found=build/fuzz/corpus/$1
  if [[ $target == cli ]]; then
    # Another part of the seeds every time.
    .venv/bin/python tests/python/cli_fuzz.py --seconds "$seconds" --first "$(date +%s)000"
    return
  fi
  mkdir -p "$found"
  "build/$preset/tests/fuzz_$target" -max_total_time="$seconds" -print_final_stats=1 -verbosity=0 \
    -rss_limit_mb=4096 -max_len="${longest[$target]:-0}" -artifact_prefix="build/fuzz/failing/$target-" \
    "$found" "tests/fuzz/corpus/$target"
}

failed=0 total=0
printf '%-16s %14s %12s  %s\n' target executions per-second outcome
tell() {
  local target=$1 code=$2 log=build/fuzz/$1.log outcome=clean runs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [[ $code -ne 0 ]]; then
    outcome="FAILED, see $log"
    failed=1
  fi
  printf '%-16s %14s %12s  %s\n' "$target" "${runs:-?}" "$((${runs:-0} / seconds))" "$outcome"
  total=$((total + ${runs:-0}))
}
cores=$(nproc)
for ((first = 0; first < ${#targets[@]}; first += cores)); do
  together=("${targets[@]:first:cores}")
  processes=()
  for target in "${together[@]}"; do
    fuzz "$target" >"build/fuzz/$target.log" 2>&1 &
    processes+=($!)
  done
  for i in "${!together[@]}"; do
    code=0
    wait "${processes[i]}" || code=$?
    tell "${together[i]}" "$code"
  done
done
printf '%-16s %14s\n' together "$total"
exit "$failed"
