#!/bin/bash
# Runs the job's tasks in sequence in a plain directory, as users do without a cluster.
#
# usage: offline.sh WORKDIR DATA
#
#   WORKDIR   directory of the groups and results; missing files are copied from DATA
#   DATA      directory of get-data.sh and make-job.py
set -euo pipefail
if [ $# != 2 ]; then
  sed -n '2,4p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
data=$(cd "$2" && pwd)
cd "$1"
for file in "$data"/input/*; do
  [ -e "$(basename "$file")" ] || cp "$file" .
done
total=$(wc -l < "$data/commands.tsv")
done=0
while IFS=$'\t' read -r name _ output command; do
  done=$((done + 1))
  printf 'keywords: %2d of %d: %s\n' "$done" "$total" "$name"
  read -ra words <<< "$command"
  "${words[@]}" > "$output" < /dev/null
done < "$data/commands.tsv"
