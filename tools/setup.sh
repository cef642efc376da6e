#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build and test: Debian packages, and the Python packages in .venv.
# Run by make before everything else, so it is quick when nothing is missing. With --system only the
# former, which is all that a build needs; with --all also what `make test-all` and `make docs` need.
set -euo pipefail
cd "$(dirname "$0")/.."

torch=2.13.0
packages=(
  g++ cmake ninja-build make git pkgconf python3 python3-venv python3-dev
  libhwy-dev libxxhash-dev nlohmann-json3-dev
  libopenmpi-dev openmpi-bin zlib1g-dev
  iproute2
  libgtest-dev librapidcheck-dev
  dataset-fashion-mnist bible-kjv-text
)

[[ ${1:-} == --all ]] && packages+=(chromium)

fail() {
  echo "setup: $*" >&2
  exit 1
}

missing_packages() {
  # dpkg-query fails when any name is unknown, and still lists the others.
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/^installed //p') || true
  comm -23 <(printf '%s\n' "${packages[@]}" | sort) <(sort <<<"$installed") | xargs
}

install_packages() {
  local missing as_root=()
  missing=$(missing_packages)
  [[ -z $missing ]] && return
  if [[ $EUID -ne 0 ]]; then
    sudo -n true 2>/dev/null || fail "missing packages; run: sudo apt-get install $missing"
    as_root=(sudo -n)
  fi
  echo "setup: installing $missing"
  "${as_root[@]}" apt-get update -qq
  # shellcheck disable=SC2086  # a list of words
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends $missing </dev/null >/dev/null
}

install_python_packages() {
  local wanted python=${PYTHON:-python3}
  wanted=$(cat tools/setup.sh tools/requirements.txt | sha256sum)
  [[ $wanted == "$(cat .venv/.requirements 2>/dev/null)" ]] && return

  if [[ ! -x .venv/bin/python ]]; then
    command -v "$python" >/dev/null || fail "found no $python; set PYTHON to a Python 3.11 or newer"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      fail "$("$python" --version) is too old; set PYTHON to a Python 3.11 or newer"
    echo "setup: creating .venv"
    "$python" -m venv .venv
  fi
  echo "setup: installing Python packages into .venv"
  local pip=(.venv/bin/python -m pip install -qq --disable-pip-version-check)
  # First and alone: a range such as torch>=2.4 would fetch the newest release with all of CUDA.
  "${pip[@]}" "torch==$torch"
  "${pip[@]}" -r tools/requirements.txt
  echo "$wanted" >.venv/.requirements
}

# Trainers and mkdocs, which only `make test-all` and `make docs` use: tools/setup.sh --all.
install_all() {
  local wanted
  wanted=$(sha256sum <tools/requirements-all.txt)
  [[ $wanted == "$(cat .venv/.requirements-all 2>/dev/null)" ]] && return
  echo "setup: installing trainers and mkdocs into .venv"
  .venv/bin/python -m pip install -qq --disable-pip-version-check -r tools/requirements-all.txt
  echo "$wanted" >.venv/.requirements-all
}

if command -v dpkg-query >/dev/null; then
  install_packages
else
  echo "setup: not a Debian system, expecting the equivalents of: ${packages[*]}"
fi
[[ ${1:-} == --system ]] && exit
install_python_packages
if [[ ${1:-} == --all ]]; then
  install_all
fi
