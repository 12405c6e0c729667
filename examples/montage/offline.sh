#!/bin/bash
# Runs the job's tasks one after the other in a plain folder, the way one does without an array.
#
# usage: offline.sh WORKDIR DATA
#
#   WORKDIR   where the images and tables are (those that are not are copied from DATA) and the results go
#   DATA      folder that get-data.sh and make-job.py filled
set -euo pipefail
if [ $# != 2 ]; then
  sed -n '2,4p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
data=$(cd "$2" && pwd)
cd "$1"
for file in "$data"/images/* "$data"/plan/*; do
  [ -e "$(basename "$file")" ] || cp "$file" .
done
total=$(wc -l < "$data/commands.tsv")
done=0
while IFS=$'\t' read -r name _ _ command; do
  done=$((done + 1))
  printf 'montage: %2d of %d: %s\n' "$done" "$total" "$name"
  read -ra words <<< "$command"
  # Montage's tools tell of errors in their output, some with exit code 0.
  if ! output=$("${words[@]}" 2>&1 < /dev/null) || [[ $output == *'stat="ERROR"'* ]]; then
    echo "montage: $command failed: $output" >&2
    exit 1
  fi
done < "$data/commands.tsv"
sha256sum mosaic.fits
