#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Becomes COMMAND in the namespace of a rank of the lab $NETLAB_NAME:
#   netlab_enter.sh RANK COMMAND...
# with a host name of its own, because frameworks take ranks with one host name for ranks of one
# machine, and with an /etc/hosts that knows the lab, where no name server can be reached.
space=netlab-$NETLAB_NAME-$1
shift
exec ip netns exec "$space" unshare --uts --mount sh -c '
  hostname "$0"
  mount --bind "/run/netlab/$NETLAB_NAME/hosts" /etc/hosts
  exec "$@"' "$space" "$@"
