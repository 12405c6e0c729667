#!/usr/bin/env bash
# Runs a model that writes its output into the cluster while a rule analyses it, and then repeats the analysis for comparison.
#
# usage: run.sh [RECORDS]      number of records of 1 MiB (default 50)
#
# TIDEMILL names the program (default: tidemill in PATH). Needs /dev/fuse, a C compiler and python3. The cluster is in a temporary
# directory, which is removed at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
records=${1:-50} tidemill=${TIDEMILL:-tidemill}
unset TIDEMILL_SERVER TIDEMILL_TOKEN_FILE TIDEMILL_CONFIG TIDEMILL_MOUNT_PATH
directory=$(mktemp -d)
export TIDEMILL_DIR=$directory/cluster
trap '"$tidemill" --quiet down >/dev/null || true; rm -rf "$directory"' EXIT
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f s", to - from }'; }

"$tidemill" --quiet up --nodes 2 >/dev/null
mount=$directory/cluster/mnt
cc -O2 -o "$directory/model" "$here/model.c" -lm
"$tidemill" mkdir /model
cp "$here/analyse.py" "$mount/model/"
sync "$mount/model/analyse.py"
"$tidemill" --quiet rule create "$here/analyse.toml" >/dev/null

begun=$(now)
"$directory/model" "$mount/model/run.surface" 512 "$records" 100
echo "the model wrote $records records of 1 MiB in $(since "$begun")"
begun=$(now)
until [ -e "$mount/model/found/run.txt" ]; do
  sleep 0.05
  failed=$("$tidemill" rule log analyse --state failed | tail -n +2)
  [ -z "$failed" ] || { echo "$failed" >&2; exit 1; }
done
echo "the concurrent analysis was complete $(since "$begun") after the end of the model"
begun=$(now)
python3 "$here/analyse.py" 512 <"$mount/model/run.surface" >"$directory/afterwards.txt"
echo "the repeated analysis took $(since "$begun")"
cmp "$directory/afterwards.txt" "$mount/model/found/run.txt"
[ "$(wc -l <"$directory/afterwards.txt")" = "$records" ]
echo "both results are equal; the last record:"
tail -n 1 "$mount/model/found/run.txt"
"$tidemill" lineage show /model/found/run.txt
