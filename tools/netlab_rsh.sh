#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What Open MPI starts instead of ssh: HOST is the address of a rank of the lab $NETLAB_NAME.
#   netlab_rsh.sh [OPTIONS] HOST COMMAND...
while [ "${1#-}" != "$1" ]; do shift; done
rank=$((${1##*.} - 1))
shift
exec "$(dirname "$0")/netlab_enter.sh" "$rank" sh -c "$*"
