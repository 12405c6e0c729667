#!/bin/bash
# Compares the job's result with a plain grep over the unpacked source files.
#
# usage: check.sh DATA RESULT
#
#   DATA     directory of get-data.sh
#   RESULT   keywords.tsv of the job or of offline.sh
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
# As in the groups, -r skips links.
grep -rhoaE --include='*.c' --include='*.h' "$pattern" "$1/tree" |
  awk '{ count[$0]++ } END { for (word in count) print count[word] "\t" word }' |
  sort -k 2 > "$expected"
if ! diff "$expected" "$2"; then
  echo "keywords: $2 differs from grep's counts" >&2
  exit 1
fi
awk '{ all += $1 } END { print "keywords: " all " words, as grep counts them" }' "$2"
