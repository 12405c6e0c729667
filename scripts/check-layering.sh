#!/usr/bin/env bash
# Checks the dependencies between crates: the rules below the table of crates in ARCHITECTURE.md.
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

for crate in model lang sched; do
  forbid "tidemill-$crate" tokio rusqlite prost tonic hyper serde serde_json libc tidemill-format tidemill-wire tidemill-compute tidemill-sandbox tidemill-client
done
forbid tidemill-model tidemill-lang tidemill-sched toml
forbid tidemill-sched tidemill-lang
forbid tidemill-compute tokio tonic rusqlite landlock seccompiler wasmtime tidemill-sandbox tidemill-lang tidemill-sched tidemill-wire tidemill-client
forbid tidemill-sandbox tokio tonic rusqlite tidemill-lang tidemill-sched tidemill-wire tidemill-client tidemill-node tidemill-server
forbid tidemill-format tokio rusqlite prost hyper libc tidemill-model tidemill-compute tidemill-kernel-api tidemill-wire tidemill-client
forbid tidemill-kernel-api tidemill-model tidemill-compute tidemill-sandbox libc serde
forbid tidemill-wire tidemill-lang tidemill-sched tidemill-client tidemill-compute tidemill-sandbox tidemill-node tidemill-server rusqlite
forbid tidemill-remote tonic rusqlite prost fuser tidemill-wire tidemill-client tidemill-compute tidemill-mount tidemill-server
for crate in server client; do forbid "tidemill-$crate" tidemill-remote; done
for crate in server node mount client; do forbid "tidemill-$crate" opendal reqwest; done
for crate in node mount client; do forbid "tidemill-$crate" tidemill-lang tidemill-sched; done
forbid tidemill-meta axum tidemill-server tidemill-sandbox tidemill-node tidemill-mount
forbid tidemill-client tidemill-compute tidemill-sandbox tidemill-node tidemill-server tidemill-mount rusqlite
forbid tidemill-node tidemill-server tidemill-mount tidemill-plan fuser
forbid tidemill-server tidemill-sandbox tidemill-node tidemill-mount tidemill-plan fuser
forbid tidemill-mount tidemill-server tidemill-node tidemill-plan tidemill-compute tidemill-sandbox rusqlite
forbid tidemill-label tokio tonic rusqlite tidemill-model tidemill-wire tidemill-client tidemill-sandbox tidemill-mount
forbid tidemill-preload-api libc tidemill-model tidemill-wire serde
forbid tidemill-preload tokio tonic rustix serde tidemill-model tidemill-wire tidemill-client tidemill-mount
forbid tidemill-plan tokio tonic rusqlite tidemill-wire tidemill-client tidemill-compute tidemill-sandbox tidemill-node tidemill-server
forbid tidemill-cli tidemill-simulation
[ $status = 0 ] && echo "layering: all arrows point down"
exit $status
