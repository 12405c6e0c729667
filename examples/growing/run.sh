#!/usr/bin/env bash
# A model writes its output into the array while a rule analyses it there; then the same analysis is made afterwards.
#
# usage: run.sh [RECORDS]      records of 1 MiB (default 50); TIDEMILL names the program (default: the one in PATH)
#
# Needs /dev/fuse, a C compiler and python3. The array is in a temporary folder and goes with it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
records=${1:-50} tidemill=${TIDEMILL:-tidemill}
unset TIDEMILL_SERVER TIDEMILL_TOKEN_FILE TIDEMILL_CONFIG TIDEMILL_MOUNT_PATH
folder=$(mktemp -d)
export TIDEMILL_DIR=$folder/array
trap '"$tidemill" --quiet down >/dev/null || true; rm -rf "$folder"' EXIT
now() { date +%s.%N; }
since() { awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f s", to - from }'; }

"$tidemill" --quiet up --elements 2 >/dev/null
mount=$folder/array/mnt
cc -O2 -o "$folder/model" "$here/model.c" -lm
"$tidemill" mkdir /model
cp "$here/analyse.py" "$mount/model/"
sync "$mount/model/analyse.py"
"$tidemill" --quiet rule add "$here/analyse.rule" >/dev/null

begun=$(now)
"$folder/model" "$mount/model/run.surface" 512 "$records" 100
echo "the model wrote $records records of 1 MiB in $(since "$begun")"
begun=$(now)
until [ -e "$mount/model/found/run.txt" ]; do
  sleep 0.05
  failed=$("$tidemill" rule log analyse --state failed | tail -n +2)
  [ -z "$failed" ] || { echo "$failed" >&2; exit 1; }
done
echo "the analysis that ran meanwhile was there $(since "$begun") after its end"
begun=$(now)
python3 "$here/analyse.py" 512 <"$mount/model/run.surface" >"$folder/afterwards.txt"
echo "the same analysis afterwards took $(since "$begun")"
cmp "$folder/afterwards.txt" "$mount/model/found/run.txt"
[ "$(wc -l <"$folder/afterwards.txt")" = "$records" ]
echo "both say the same; the last record:"
tail -n 1 "$mount/model/found/run.txt"
"$tidemill" lineage /model/found/run.txt
