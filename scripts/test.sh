#!/usr/bin/env bash
# cargo test with these arguments. What fails is run once more, alone and one test at a time: machines that run this are slow and
# shared, and a test that waits for processes may wait in vain there. What fails twice fails. What passed the second time is named.
#   scripts/test.sh --locked --workspace --test e2e -- --test-threads=2
set -uo pipefail

# More than this many is no accident.
readonly FAILED_MAX=8

log=$(mktemp)
trap 'rm -f "$log"' EXIT
before=()
for word in "$@"; do
  [ "$word" = -- ] && break
  before+=("$word")
done

cargo test --no-fail-fast "$@" 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" = 0 ] && exit 0
mapfile -t failed < <(sed -n 's/^---- \(.*\) stdout ----$/\1/p' "$log" | sort -u)
if [ ${#failed[@]} = 0 ]; then
  echo "test: no test was named as failed: this does not build, or a process of tests ended early" >&2
  exit 1
fi
if [ ${#failed[@]} -gt $FAILED_MAX ]; then
  echo "test: ${#failed[@]} tests failed" >&2
  exit 1
fi
if grep -q 'process didn.t exit successfully' "$log" && grep -q '(signal: ' "$log"; then
  echo "test: a process of tests was killed, so not all of them ran" >&2
  exit 1
fi
echo "test: once more, alone: ${failed[*]}"
if ! cargo test --no-fail-fast "${before[@]}" -- --exact --test-threads=1 "${failed[@]}"; then
  echo "test: failed twice: among ${failed[*]}" >&2
  exit 1
fi
printf 'test: UNSTEADY, failed once and passed alone: %s\n' "${failed[@]}"
