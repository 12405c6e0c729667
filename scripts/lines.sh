#!/usr/bin/env bash
# Counts the lines of Rust of each crate, without tests: the files in src without modules and items under `#[cfg(test)]`.
# With --strip FILE… the script prints the counted lines of these files.
set -euo pipefail
cd "$(dirname "$0")/.."

# An item under `#[cfg(test)]` ends at its closing line with the same indentation, or at its semicolon.
strip() {
  awk '
    function indent(line) { match(line, /^ */); return RLENGTH }
    FNR == 1 { skipping = 0; pending = 0 }
    skipping { if (indent($0) == depth && $0 ~ /^ *[})\]]+[;,]? *$/) skipping = 0; next }
    /^ *#\[cfg\((test|all\(test,.*)\)\]/ { pending = 1; depth = indent($0); next }
    pending && /^ *#\[/ { next }
    pending { pending = 0; if ($0 !~ /[;}] *$/ && $0 !~ /, *$/) skipping = 1; next }
    { print }
  ' "$@"
}

# A file is a test of its crate if its name is `tests.rs` or `fuzzing.rs`, by convention.
sources() {
  find "$1/src" -name '*.rs' ! -name tests.rs ! -name fuzzing.rs ! -path '*/tests/*' | sort
}

if [ "${1:-}" = --strip ]; then
  shift
  strip "$@"
  exit
fi

total=0
for crate in crates/*/; do
  mapfile -t files < <(sources "$crate")
  lines=$(strip "${files[@]}" | wc -l)
  printf '%8d  %s\n' "$lines" "$(basename "$crate")"
  total=$((total + lines))
done
printf '%8d  in all\n' "$total"
