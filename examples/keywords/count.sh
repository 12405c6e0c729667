#!/bin/bash
# Kernel of the map tasks: counts the occurrences of each word of a list in a text.
# usage: count.sh WORDS TEXT      writes lines of a number, a tab and a word, sorted by the word
set -euo pipefail
export LC_ALL=C
# grep ends with 1 without matches, which is no error here.
{ grep --text --only-matching --word-regexp --fixed-strings --file="$1" -- "$2" || [ $? = 1 ]; } |
  awk '{ count[$0]++ } END { for (word in count) print count[word] "\t" word }' |
  sort -k 2
