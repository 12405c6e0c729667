#!/bin/sh
# How fast the planning simulator is: workflows of 1000 to 100 000 tasks on 8 to 1000 elements. Each line has both
# counts of events, seconds on the clock and on the core, and peak memory (of reading and simulating, not of making
# the workflow).
set -eu
cd "$(dirname "$0")/.."
out=bench/out
mkdir -p "$out"
cargo build --release --locked --quiet -p tidemill-plan --example simulate_large
run=target/release/examples/simulate_large
for tasks in 1000 10000 100000; do
    "$run" --tasks "$tasks" --write "$out/layers-$tasks.json"
done
for shape in "1000 8" "10000 8" "100000 8" "100000 100" "100000 1000"; do
    tasks=${shape% *} elements=${shape#* }
    for policy in round-robin min-wait write-amplification; do
        "$run" --read "$out/layers-$tasks.json" --elements "$elements" --policy "$policy"
    done
done
