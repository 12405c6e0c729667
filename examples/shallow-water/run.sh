#!/usr/bin/env bash
# Runs the model in a directory of the cluster, with hooks that analyse each file as soon as the model has closed it.
#
# usage: run.sh [FILES [SIDE]]     number of files (default 30), one per second, of SIDE x SIDE cells (default 256)
#
# Needs a running cluster (`tidemill up --burst DIRECTORY`), a C compiler and python3. TIDEMILL names the program
# (default: tidemill in PATH).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
files=${1:-30} side=${2:-256} tidemill=${TIDEMILL:-tidemill}
milliseconds=${MILLISECONDS_EACH:-1000}

mount=$("$tidemill" --json up | python3 -c 'import json, sys; print(json.load(sys.stdin)["mount"])')
[ -d "$mount/.tidemill" ] || { echo "run.sh: the cluster is not mounted" >&2; exit 1; }
sea=$mount/sea
model=$(mktemp)
trap 'rm -f "$model"' EXIT
cc -O2 -o "$model" "$here/model.c" -lm

# Hooks and files of an earlier run are removed first.
for hook in extremes quicklook; do
  "$tidemill" rule show "$hook" >/dev/null 2>&1 && "$tidemill" --quiet rule delete "$hook"
done
rm -rf "$sea"
mkdir "$sea"
cp "$here/quicklook.py" "$sea/"
"$tidemill" --quiet rule create '/sea/sea-*.nc' --name extremes --map 'reduce op=stats variable=surface to=csv' --result 'extremes/{stem}.csv'
"$tidemill" --quiet rule create '/sea/sea-*.nc' --name quicklook --map /sea/quicklook.py --result 'quicklook/{stem}.png'

made() { find "$sea/$1" -type f 2>/dev/null | wc -l; }

"$model" "$sea" "$side" "$files" 60 "$milliseconds"
echo "at the end of the model there were $(made extremes) extremes and $(made quicklook) quicklooks of $files"
for hook in extremes quicklook; do
  until [ "$(made $hook)" = "$files" ]; do
    failed=$("$tidemill" rule log "$hook" --state failed | tail -n +2)
    [ -z "$failed" ] || { echo "$failed" >&2; exit 1; }
    sleep 0.1
  done
done
echo "extremes of each file are in $sea/extremes, pictures in $sea/quicklook; the last extremes:"
cat "$(printf '%s/extremes/sea-%04d.csv' "$sea" "$files")"
