#!/bin/bash
# Kernel of the reduce task: adds the counts of the map tasks.
# usage: sum.sh COUNTS...      writes lines of a number, a tab and a word, sorted by the word
set -euo pipefail
export LC_ALL=C
awk '{ count[$2] += $1 } END { for (word in count) print count[word] "\t" word }' "$@" | sort -k 2
