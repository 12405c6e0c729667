#!/usr/bin/env bash
# Fuzzes input from unauthenticated clients and users, guided by coverage: `scripts/fuzz.sh SECONDS [TARGET…]`. Targets: script job_toml conditions wire
# capability formats headers packs labels [default: all]. Needs a C++ compiler and no nightly toolchain. New inputs are kept in fuzz/corpus,
# failing inputs in fuzz/artifacts.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:?usage: fuzz.sh SECONDS [TARGET…], seconds for each target}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(script job_toml conditions wire capability formats headers packs labels)
triple=$(rustc -vV | sed -n 's/^host: //p')
# Flags of cargo-fuzz without a sanitizer: only logs of labels are read by unsafe code, and their target checks bounds itself.
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg=fuzzing -Ccodegen-units=1)
CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f'; echo "${flags[*]}")
export CARGO_ENCODED_RUSTFLAGS
cargo build --target "$triple"
for target in "${targets[@]}"; do
  mkdir -p "corpus/$target" "artifacts/$target"
  seeds=()
  [[ $target = script || $target = job_toml ]] && seeds=(../examples)
  [ "$target" = headers ] && seeds=(../crates/format/tests/fixtures)
  "target/$triple/debug/$target" "corpus/$target" "${seeds[@]}" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" \
    -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
done
