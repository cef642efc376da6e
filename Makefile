# SPDX-License-Identifier: Apache-2.0
# The commands of daily work. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

# The system's CMake, tested with the system's packages, rather than one of pip's earlier on PATH.
CMAKE := $(firstword $(wildcard /usr/bin/cmake) cmake)
CTEST := $(firstword $(wildcard /usr/bin/ctest) ctest)
export CMAKE_EXECUTABLE := $(CMAKE)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
export CTEST_PARALLEL_LEVEL ?= $(shell nproc)

VENV := .venv/bin
STAGE := tools/stage.sh
SUBMAKE := $(MAKE) --no-print-directory

cpp_files = $(shell find $(wildcard tidegate python tests benchmarks examples tools) \
  -name '*.h' -o -name '*.cpp')
# Folders too: their time tells when a file was removed.
package_sources := CMakeLists.txt pyproject.toml \
  $(shell find cmake python tidegate benchmarks -name __pycache__ -prune -o -print)
advise_format := { echo "run \`make format\`"; exit 1; }
installed := .venv/.tidegate-installed

.PHONY: help setup system build cpp package test test-all ctest run-ctest asan tsan sanitize check-all fuzz \
  docs demo bench evidence faults soak lint types format clean

help: ## list the targets
	@awk -F ':.* ## ' '/^[a-z-]+:.* ## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: system ## install what is missing: system packages, .venv
	@tools/setup.sh

system:
	@tools/setup.sh --system

build: cpp package ## build the library, and install the Python package into .venv

cpp: system
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build --preset release

package: $(installed)

# The module is linked with the library of the release build, which the tests use as well.
$(installed): $(package_sources) | setup
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build --preset release --target tidegate
	@$(VENV)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps . \
	  --config-settings=cmake.define.TIDEGATE_PREBUILT=$(CURDIR)/build/release/libtidegate.a
	@touch $@

# pytest comes last: its closing line tells the outcome of the whole. Without the sanitizers, which
# are in `make test-all`: they take as long again. One worker more than cores: many tests wait.
test: ## build and run the checks and tests (ten minutes from nothing)
	@$(STAGE) "system packages" $(SUBMAKE) system
	@$(STAGE) "Python packages, beside the build (release, warnings are errors)" $(SUBMAKE) -j2 setup cpp
	@$(STAGE) "C++ tests, beside the Python package" $(SUBMAKE) -j2 run-ctest package
	@$(STAGE) "format, lint and direction of includes" $(SUBMAKE) lint
	@echo "== Python tests"
	@$(VENV)/python -m pytest -m 'not all' -n $$(( $(CMAKE_BUILD_PARALLEL_LEVEL) + 1 )) --dist worksteal

# The C++ tests under sanitizers, and the tests marked `all`, which take long or need much
# installed. One after the other: they start browsers and jobs of several processes themselves.
test-all: ## what `make test` leaves out: sanitizers, types, browser, trainers, packaging (20 minutes)
	@$(STAGE) "setup" tools/setup.sh --all
	@$(STAGE) "C++ tests (address and undefined behaviour sanitizers)" $(SUBMAKE) asan
	@$(STAGE) "C++ tests (thread sanitizer)" $(SUBMAKE) tsan
	@$(STAGE) "Python package" $(SUBMAKE) package
	@$(STAGE) "types of the Python package" $(SUBMAKE) types
	@echo "== Python tests marked all"
	@$(VENV)/python -m pytest -m all

ctest: cpp
	@$(SUBMAKE) run-ctest

# As it was built.
run-ctest:
	@$(CTEST) --preset release

# The tests themselves are those of the release build: only the library is instrumented.
asan: cpp
	@$(CMAKE) --preset asan-ubsan -D TIDEGATE_TEST_OBJECTS=$(CURDIR)/build/release >/dev/null
	@$(CMAKE) --build --preset asan-ubsan
	@$(CTEST) --preset asan-ubsan

tsan: system
	@$(CMAKE) --preset tsan >/dev/null
	@$(CMAKE) --build --preset tsan
	@$(CTEST) --preset tsan

# `make test-all` leaves out instruction sets whose kernels are the same code with longer vectors.
sanitize: tsan ## build and run the C++ tests with sanitizers, for every instruction set
	@$(CMAKE) --preset asan-all-targets >/dev/null
	@$(CMAKE) --build --preset asan-all-targets
	@$(CTEST) --preset asan-all-targets

# The thread sanitizer over all C++ tests and fuzz targets, where `make test-all` takes the tests with
# threads only. In the same folder, so that the library is built once.
check-all: test test-all sanitize ## all tests, all sanitizers over the whole C++ suite, and fuzzing (an hour)
	@$(CMAKE) --preset tsan -D TIDEGATE_TSAN_ALL=ON >/dev/null
	@$(CMAKE) --build build/tsan
	@$(CTEST) --test-dir build/tsan --output-on-failure
	@tools/fuzz.sh 60

fuzz: package ## run every fuzz target with libFuzzer, a minute each; needs clang (tools/fuzz.sh for more)
	@tools/fuzz.sh 60

docs: package ## build the documentation as a site, build/site/index.html; broken links are errors
	@tools/setup.sh --all
	@$(VENV)/python tools/docs/build_site.py

demo: package ## show what Tidegate does, on this machine
	@$(VENV)/tidegate demo

bench: package ## run the benchmarks (about ten minutes)
	@$(VENV)/tidegate bench kernels
	@$(VENV)/tidegate bench wire
	@$(VENV)/tidegate bench exchange
	@$(VENV)/tidegate bench policies

evidence: package ## measure what is saved and lost, all that is missing (hours; ARGS=--quick: ten minutes)
	@$(VENV)/python -m benchmarks.evidence $(ARGS)

faults: package ## break jobs in every way we know, and see what becomes of them (3 minutes)
	@cd tools && ../$(VENV)/python faults.py

soak: package ## run for long and look for what only time shows (15 minutes)
	@$(VENV)/python tools/soak.py

lint: setup ## check format, Python code and the direction of includes
	@$(VENV)/clang-format --dry-run --Werror --ferror-limit=1 $(cpp_files) || $(advise_format)
	@$(VENV)/ruff format --quiet --check . || $(advise_format)
	@$(VENV)/ruff check --quiet .
	@$(VENV)/python tools/check_includes.py

types: package ## check the types of the installed Python package
	@$(VENV)/mypy

format: setup ## format all code
	@$(VENV)/clang-format -i $(cpp_files)
	@$(VENV)/ruff check --quiet --fix-only .
	@$(VENV)/ruff format --quiet .

clean: ## remove what was built; .venv stays
	rm -rf build $(installed)
