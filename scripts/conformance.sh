#!/usr/bin/env bash
# POSIX conformance of the mount: pjdfstest (all cases but those of docs/semantics.md) and fsx, on a real array.
# Needs root and /dev/fuse. TIDEMILL names the binary; default: the one that the tests built.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ] || [ ! -e /dev/fuse ]; then
  echo "conformance: SKIPPED: needs root and /dev/fuse" >&2
  [ -z "${TIDEMILL_TEST_REQUIRE:-}" ]
  exit
fi

tools=${XDG_CACHE_HOME:-$HOME/.cache}/tidemill/tools
# tool NAME VERSION BINARY: a test program, built once.
tool() {
  [ -x "$tools/bin/$3" ] || { echo "conformance: building $1"; cargo install --quiet --locked --root "$tools" "$1" --version "$2"; }
}
tool pjdfstest 0.2.2 pjdfstest
tool fsx 0.3.2 fsx

# Users that pjdfstest acts as; made if they are missing.
for user in tidemill-test-a tidemill-test-b tidemill-test-c; do
  id "$user" >/dev/null 2>&1 || useradd --system --no-create-home --user-group "$user"
done

# As the tests build it, so that nothing is built twice.
[ -n "${TIDEMILL:-}" ] || cargo test --locked --workspace --features tidemill-cli/wasm --test e2e --no-run
tidemill=${TIDEMILL:-target/debug/tidemill}
work=$(mktemp -d /tmp/tidemill-conformance-XXXXXX)
chmod 755 "$work"
stop() {
  "$tidemill" --dir "$work/array" down >/dev/null 2>&1 || true
  umount -l "$work/mnt" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT
mkdir "$work/mnt"
"$tidemill" --dir "$work/array" up --elements 2 --mount "$work/mnt" >/dev/null

cat > "$work/pjdfstest.toml" <<E2
[features]
posix_fallocate = {}
utime_now = {}
[settings]
naptime = 0.01
expected_failures = [$(sed -n 's/^| `\([a-z_:]*\)` |.*/"\1",/p' docs/semantics.md | tr '\n' ' ')]
[dummy_auth]
entries = [["tidemill-test-a", "tidemill-test-a"], ["tidemill-test-b", "tidemill-test-b"], ["tidemill-test-c", "tidemill-test-c"]]
E2
mkdir "$work/mnt/pjd"
chmod 777 "$work/mnt/pjd"
"$tools/bin/pjdfstest" -c "$work/pjdfstest.toml" -p "$work/mnt/pjd" > "$work/pjd.log" 2>&1 || { tail -60 "$work/pjd.log"; exit 1; }
tail -5 "$work/pjd.log"
"$tools/bin/fsx" -N 20000 -S 7 "$work/mnt/fsx"
echo "conformance: passed"
