#!/usr/bin/env bash
# Runs cargo test with these arguments. Failed tests run once more, one at a time: on slow, shared machines a test that waits
# for processes may time out. A test that fails twice fails. A test that passes the second time is reported as unsteady.
#   scripts/test.sh --locked --workspace --test e2e -- --test-threads=2
set -uo pipefail

# More failures than this are no accident.
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
# The second run selects tests by name, and examples in the documentation have other names there.
if printf '%s\n' "${failed[@]}" | grep -q ' - .*(line [0-9]*)$'; then
  echo "test: an example in the documentation failed" >&2
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
