#!/usr/bin/env bash
# Prepares a workload for testbed.py: prepare.sh montage|keywords OUT [OPTIONS], with options of the example's get-data.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '2p' "$0" >&2; exit 2; }
name=$1 out=$2
shift 2
example=$here/../../examples/$name
mkdir -p "$out/data"
"$example/get-data.sh" "$@" "$out/source"
"$example/make-job.py" "$out/source" /work
case $name in
  montage) cp "$out"/source/images/* "$out"/source/plan/* "$out/data/" ;;
  keywords) cp "$out"/source/input/* "$out/data/" ;;
esac
cp "$out/source/$name.toml" "$out/job.toml"
# kernel<TAB>command; keywords' kernels write to standard output.
awk -F'\t' -v redirect="$([ "$name" = keywords ] && echo 1 || echo 0)" \
  '{ split($4, words, " "); print words[1] "\t" $4 (redirect ? " > " $3 : "") }' "$out/source/commands.tsv" > "$out/commands.tsv"
echo "prepared $name in $out: $(wc -l < "$out/commands.tsv") tasks, $(du -sh "$out/data" | cut -f1) of input"
