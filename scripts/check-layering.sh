#!/usr/bin/env bash
# Checks the dependencies between crates: each arrow of ARCHITECTURE.md must point down.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

# forbid CRATE NAME...: fails if a name is among the normal dependencies of the crate, direct or indirect.
forbid() {
  local crate=$1 tree name
  shift
  tree=$(cargo tree --locked --offline -p "$crate" -e normal --prefix none --format '{p}' | awk '{print $1}' | sort -u)
  for name in "$@"; do
    if grep -qx -- "$name" <<<"$tree"; then
      echo "layering: $crate must not reach $name (ARCHITECTURE.md, invariants)" >&2
      status=1
    fi
  done
}

forbid tidemill-core tokio rusqlite prost tonic hyper serde tidemill-wire tidemill-client tidemill-kernel
forbid tidemill-kernel tokio tonic rusqlite tidemill-wire tidemill-client tidemill-node tidemill-server
forbid tidemill-format tokio rusqlite prost hyper libc tidemill-core tidemill-kernel tidemill-kernel-api tidemill-wire tidemill-client tidemill-node tidemill-server tidemill-mount tidemill-plan
forbid tidemill-kernel-api tidemill-core tidemill-kernel libc serde
forbid tidemill-wire tidemill-client tidemill-kernel tidemill-node tidemill-server rusqlite
forbid tidemill-remote tonic rusqlite prost fuser tidemill-core tidemill-wire tidemill-client tidemill-kernel tidemill-mount tidemill-server
for crate in server node mount client; do forbid "tidemill-$crate" opendal tidemill-remote; done
forbid tidemill-client tidemill-kernel tidemill-node tidemill-server tidemill-mount rusqlite
forbid tidemill-node tidemill-server tidemill-mount tidemill-plan fuser
forbid tidemill-server tidemill-node tidemill-mount tidemill-plan fuser
forbid tidemill-mount tidemill-server tidemill-node tidemill-plan rusqlite
forbid tidemill-label tokio tonic rusqlite tidemill-core tidemill-wire tidemill-client tidemill-kernel tidemill-mount
forbid tidemill-preload-api libc tidemill-core tidemill-wire serde
forbid tidemill-preload tokio tonic rustix serde tidemill-core tidemill-wire tidemill-client tidemill-mount
forbid tidemill-plan tokio tonic rusqlite tidemill-wire tidemill-client tidemill-kernel tidemill-node tidemill-server
forbid tidemill-cli tidemill-simulation
[ $status = 0 ] && echo "layering: all arrows point down"
exit $status
