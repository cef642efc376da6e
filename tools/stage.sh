#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one stage of a long make target under a heading, and says how long it took:
#   tools/stage.sh "heading" command arguments...
set -euo pipefail
echo "== $1"
shift
SECONDS=0
"$@"
echo "-- $SECONDS s"
