#!/usr/bin/env bash
# Tests labels in NATS JetStream with real servers. `install` builds nats-server into /usr/local/bin, or DIRECTORY, and needs a
# recent Go. `test` runs the tests that send labels with that server. NATS_SERVER names another program.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  install)
    command -v go >/dev/null || { echo "nats: Go is missing; Debian's golang-go may be too old" >&2; exit 1; }
    GOBIN="${2:-/usr/local/bin}" go install github.com/nats-io/nats-server/v2@v2.15.2
    exit
    ;;
  test) ;;
  *) echo "usage: scripts/nats.sh install [DIRECTORY] | test" >&2; exit 2 ;;
esac

server=${NATS_SERVER:-$(command -v nats-server || true)}
if [ -z "$server" ]; then
  echo "SKIPPED: no nats-server; scripts/nats.sh install builds one" >&2
  exit
fi
export NATS_SERVER=$server
whole=(--locked --workspace --features tidemill-cli/dist,tidemill-cli/nats)
labels=(--test server -- orphaned_versions:: jobs:: posix:: serving::)
cargo test "${whole[@]}" --lib --test nats queue
cargo test "${whole[@]}" --test nats
cargo test "${whole[@]}" --test e2e queue -- --test-threads=1

directory=$(mktemp -d)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$server" --addr 127.0.0.1 --port "$port" --jetstream --store_dir "$directory" >"$directory/log" 2>&1 &
pid=$!
trap 'kill -9 $pid; wait $pid 2>/dev/null || true; rm -rf "$directory"' EXIT
TIDEMILL_TEST_QUEUE="nats://127.0.0.1:$port" cargo test "${whole[@]}" "${labels[@]}"
