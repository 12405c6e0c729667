#!/bin/bash
# Compares the job's result with a plain grep over the source files as they were unpacked.
#
# usage: check.sh DATA RESULT
#
#   DATA     folder that get-data.sh filled
#   RESULT   keywords.tsv as the job or offline.sh wrote it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ $# != 2 ]; then
  sed -n '2,4p' "$0" >&2
  exit 2
fi
export LC_ALL=C
expected=$(mktemp)
trap 'rm -f "$expected"' EXIT
pattern="\\b($(paste -sd '|' "$here/keywords.txt"))\\b"
# Like the groups, -r leaves links out.
grep -rhoaE --include='*.c' --include='*.h' "$pattern" "$1/tree" |
  awk '{ count[$0]++ } END { for (word in count) print count[word] "\t" word }' |
  sort -k 2 > "$expected"
if ! diff "$expected" "$2"; then
  echo "keywords: $2 differs from grep's counts" >&2
  exit 1
fi
awk '{ all += $1 } END { print "keywords: " all " words, as grep counts them" }' "$2"
