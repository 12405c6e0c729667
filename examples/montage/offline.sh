#!/bin/bash
# Runs the job's tasks in sequence in a plain directory, as users do without a cluster.
#
# usage: offline.sh WORKDIR DATA
#
#   WORKDIR   directory of the images, tables and results; missing inputs are copied from DATA
#   DATA      directory of get-data.sh and make-job.py
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
  # Montage's tools report errors in their output, some of them with exit code 0.
  if ! output=$("${words[@]}" 2>&1 < /dev/null) || [[ $output == *'stat="ERROR"'* ]]; then
    echo "montage: $command failed: $output" >&2
    exit 1
  fi
done < "$data/commands.tsv"
sha256sum mosaic.fits
