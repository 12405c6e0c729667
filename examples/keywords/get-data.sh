#!/bin/bash
# Unpacks the Linux sources of Debian's package, and packs their C files into groups.
#
# usage: get-data.sh [--cache DIR] [--part DIRECTORY] [--groups N] OUT
#
#   OUT/tree     the .c and .h files of the package
#   OUT/input    files for the cluster: N groups (default 32), the list of keywords and the two kernels
#
# --part selects one directory of the sources, such as kernel (12 MB) or fs (42 MB); all directories have 1.2 GB.
# Downloads are kept in DIR (default: tidemill in the user's cache directory). A second run does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tidemill
part=
groups=32
while [ $# -gt 1 ]; do
  case $1 in
    --cache) cache=$2; shift 2 ;;
    --part) part=${2%/}; shift 2 ;;
    --groups) groups=$2; shift 2 ;;
    *) break ;;
  esac
done
if [ $# != 1 ] || [[ ! $groups =~ ^[1-9][0-9]*$ ]] || [[ $part == *..* ]]; then
  sed -n '2,4p' "$0" >&2
  exit 2
fi
out=$1

bash "$here/install.sh"
mkdir -p "$cache/keywords" "$out"
package() {
  find "$cache/keywords" -name 'linux-source-*.deb' | sort -V | tail -n 1
}
if [ -z "$(package)" ]; then
  # linux-source depends on the package with the sources of this Debian release.
  release() {
    apt-cache depends linux-source | awk '$1 == "Depends:" { print $2; exit }'
  }
  [ -n "$(release)" ] || apt-get update -qq
  echo "keywords: downloading the Linux sources (Debian package $(release), 140 MB)"
  download() {
    mkdir -p "$cache/keywords/part"
    (cd "$cache/keywords/part" && apt-get -qq -o APT::Sandbox::User=root download "$(release)")
  }
  download || { apt-get update -qq && download; }
  mv "$cache"/keywords/part/linux-source-*.deb "$cache/keywords/"
fi

stamp="$(basename "$(package)") part=$part groups=$groups $(sha256sum < "$here/make-groups.py" | cut -c1-16)"
if [ "$(cat "$out/.complete" 2>/dev/null)" = "$stamp" ]; then
  echo "keywords: $out is complete"
  exit 0
fi
rm -rf "$out/.complete" "$out/tree" "$out/input"
mkdir -p "$out/tree" "$out/input"
echo "keywords: unpacking ${part:-all directories} of $(basename "$(package)")"
top=$(basename "$(package)")
top=${top%%_*}
dpkg-deb --fsys-tarfile "$(package)" | tar -xO "./usr/src/$top.tar.xz" |
  tar -xJ -C "$out/tree" --strip-components=1 --no-same-owner --wildcards \
    "$top/${part:+$part/}*.c" "$top/${part:+$part/}*.h"
echo "keywords: packing $groups groups"
python3 "$here/make-groups.py" "$out/tree" "$out/input" "$groups"
cp "$here/keywords.txt" "$here/count.sh" "$here/sum.sh" "$out/input/"
echo "$stamp" > "$out/.complete"
