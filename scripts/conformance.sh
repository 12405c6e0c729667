#!/usr/bin/env bash
# Tests the POSIX conformance of the mount with pjdfstest and fsx on a real cluster. Cases in the table of docs/semantics.md
# may fail. `conformance.sh preload` tests programs without a mount, with the table of docs/preload.md.
# Needs root and /dev/fuse. TIDEMILL names the binary [default: the binary that the tests built].
set -euo pipefail
cd "$(dirname "$0")/.."
preload=
[ "${1:-}" != preload ] || preload=1
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
  echo "conformance: SKIPPED: needs root and /dev/fuse" >&2
  [ -z "${TIDEMILL_TEST_REQUIRE:-}" ]
  exit
fi

tools=${XDG_CACHE_HOME:-$HOME/.cache}/tidemill/tools
# tool NAME VERSION BINARY: builds a test program if it is missing.
tool() {
  [ -x "$tools/bin/$3" ] || { echo "conformance: building $1"; cargo install --quiet --locked --root "$tools" "$1" --version "$2"; }
}
tool pjdfstest 0.2.2 pjdfstest
tool fsx 0.3.2 fsx

# Users of pjdfstest; missing users are made.
for user in tidemill-test-a tidemill-test-b tidemill-test-c; do
  id "$user" >/dev/null 2>&1 || useradd --system --no-create-home --user-group "$user"
done

# The flags are those of the tests, so that nothing is built twice.
[ -n "${TIDEMILL:-}" ] || cargo test --locked --workspace --features tidemill-cli/dist,tidemill-cli/nats --test e2e --no-run
tidemill=${TIDEMILL:-target/debug/tidemill}
work=$(mktemp -d /tmp/tidemill-conformance-XXXXXX)
chmod 755 "$work"
serving=
stop() {
  [ -z "$serving" ] || kill "$serving" 2>/dev/null || true
  "$tidemill" --dir "$work/cluster" down >/dev/null 2>&1 || true
  umount -l "$work/mnt" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
mkdir "$work/mnt"
if [ -n "$preload" ]; then
  "$tidemill" --dir "$work/cluster" up --nodes 2 --no-mount >/dev/null
  top=/t table=docs/preload.md
  "$tidemill" --dir "$work/cluster" exec --serve --allow-other --data-dir "$work/preload" >"$work/serve.log" 2>&1 &
  serving=$!
  while [ ! -e "$work/preload/s" ]; do sleep 0.1; done
  # The tests built the library in this place.
  [ ! -f "${tidemill%/*}/deps/libtidemill_preload.so" ] || export TIDEMILL_PRELOAD_LIBRARY=${tidemill%/*}/deps/libtidemill_preload.so
  run() { "$tidemill" --dir "$work/cluster" exec --data-dir "$work/preload" -- "$@"; }
else
  "$tidemill" --dir "$work/cluster" up --nodes 2 --mount "$work/mnt" >/dev/null
  top=$work/mnt table=docs/semantics.md
  run() { "$@"; }
fi

cat > "$work/pjdfstest.toml" <<E2
[features]
posix_fallocate = {}
utime_now = {}
[settings]
naptime = 0.01
expected_failures = [$([ -n "$preload" ] || sed -n 's/^| `\([a-z_:]*\)` |.*/"\1",/p' "$table" | tr '\n' ' ')]
[dummy_auth]
entries = [["tidemill-test-a", "tidemill-test-a"], ["tidemill-test-b", "tidemill-test-b"], ["tidemill-test-c", "tidemill-test-c"]]
E2
run mkdir "$top/pjd"
run chmod 777 "$top/pjd"
pjdfstest() { run "$tools/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$top/pjd" > "$work/pjd.log" 2>&1; }
if [ -n "$preload" ]; then
  pjdfstest || true
  grep -q ' ok$' "$work/pjd.log"
  # Failed cases, except those with a socket; each must be in the table.
  failed=$(sed -n 's/^\([a-z_:0-9]*\) *FAILED$/\1/p' "$work/pjd.log" | grep -v '::socket$' || true)
  for case in $failed; do
    grep -q "^| \`$case\` |" "$table" || { grep -A3 "^$case " "$work/pjd.log"; exit 1; }
  done
  echo "pjdfstest: $(grep -c ' ok$' "$work/pjd.log") cases pass, $(grep -c 'FAILED$' "$work/pjd.log") that docs/preload.md names fail"
else
  pjdfstest || { tail -60 "$work/pjd.log"; exit 1; }
  tail -5 "$work/pjd.log"
fi
run "$tools/bin/fsx" -N 20000 -S 7 "$top/fsx"
echo "conformance: passed"
