#!/bin/bash
# Makes the ten input images and the tables of the plan from one real telescope frame.
#
# usage: get-data.sh [--cache DIR] [--tile WIDTHxHEIGHT] OUT
#
#   OUT/images   ten FITS images, of 768x640 pixels or the size of --tile
#   OUT/plan     region.hdr pimages.tbl cimages.tbl fitlist.tbl: further inputs of the tasks
#   OUT/tables   tables for make-job.py only
#
# Downloads are kept in DIR (default: tidemill in the user's cache directory). A second run does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tidemill
tile=768x640
while [ $# -gt 1 ]; do
  case $1 in
    --cache) cache=$2; shift 2 ;;
    --tile) tile=$2; shift 2 ;;
    *) break ;;
  esac
done
if [ $# != 1 ] || [[ ! $tile =~ ^[0-9]+x[0-9]+$ ]]; then
  sed -n '2,4p' "$0" >&2
  exit 2
fi
out=$1
stamp="$tile $(cat "$here/cut-tiles.py" "$here/plan.py" | sha256sum | cut -c1-16)"
if [ "$(cat "$out/.complete" 2>/dev/null)" = "$stamp" ]; then
  echo "montage: $out is complete"
  exit 0
fi
bash "$here/install.sh"
mkdir -p "$cache" "$out"

frame=$cache/montage/frame.fits
if [ ! -s "$frame" ]; then
  echo "montage: downloading the frame (Debian package eso-midas-testdata, 38 MB)"
  mkdir -p "$cache/montage"
  (cd "$cache/montage" && apt-get -qq -o APT::Sandbox::User=root download eso-midas-testdata) ||
    (apt-get update -qq && cd "$cache/montage" && apt-get -qq -o APT::Sandbox::User=root download eso-midas-testdata)
  # The package is unpacked and not installed, as it depends on all of MIDAS.
  dpkg-deb --fsys-tarfile "$cache"/montage/eso-midas-testdata_*.deb |
    tar -xO --wildcards '*/ISAAC.*.fits' > "$frame.part"
  mv "$frame.part" "$frame"
fi

# Fixed versions, so that the images are the same everywhere.
packages=(astropy==7.0.1 numpy==2.2.4 scipy==1.15.2)
python=$cache/montage/venv/bin/python
if [ "$(cat "$cache/montage/venv/.complete" 2>/dev/null)" != "${packages[*]}" ]; then
  echo "montage: installing ${packages[*]} in $cache/montage/venv"
  python3 -m venv --clear "$cache/montage/venv"
  "$python" -m pip -q --disable-pip-version-check install "${packages[@]}"
  echo "${packages[*]}" > "$cache/montage/venv/.complete"
fi

rm -rf "$out/.complete" "$out/images" "$out/plan" "$out/tables"
echo "montage: cutting ten images of $tile pixels"
"$python" "$here/cut-tiles.py" "$frame" "$out/images" "${tile%x*}" "${tile#*x}"
echo "montage: planning"
"$python" "$here/plan.py" "$out"
echo "$stamp" > "$out/.complete"
echo "montage: ready: ten images, $(du -sh "$out/images" | cut -f1) in $out"
