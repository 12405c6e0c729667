#!/usr/bin/env bash
# Runs rules that make monthly or annual means of every new CMIP6 file, and compares all means with those of xarray.
#
# usage: run.sh [DIRECTORY]      DIRECTORY of get-data.sh (without DIRECTORY the data is fetched)
#
# TIDEMILL names the program (default: tidemill in PATH). Needs /dev/fuse and python3 with venv. If CDO is installed, its rule
# is added. The cluster is in a temporary directory.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tidemill=${TIDEMILL:-tidemill}
unset TIDEMILL_SERVER TIDEMILL_TOKEN_FILE TIDEMILL_CONFIG TIDEMILL_MOUNT_PATH
directory=$(mktemp -d)
export TIDEMILL_DIR=$directory/cluster
trap '"$tidemill" --quiet down >/dev/null || true; rm -rf "$directory"' EXIT
data=${1:-$directory/data}
[ -d "$data" ] || "$here/get-data.sh" "$data"
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet xarray cftime h5netcdf netCDF4

"$tidemill" --quiet up --nodes 4 >/dev/null
mount=$directory/cluster/mnt
"$tidemill" mkdir /cmip6
"$tidemill" mkdir /cmip6/in
rules="monthly annual"
if command -v cdo >/dev/null; then rules+=" cdo"; fi
for rule in $rules; do "$tidemill" --quiet rule create "$here/$rule.toml" >/dev/null; done

count() { find "$mount/cmip6/$1" -name '*.nc' 2>/dev/null | wc -l; }
busy() {
  for rule in $rules; do
    if "$tidemill" rule show "$rule" | grep -E '^runs:.* (queued|waiting|running)' >/dev/null; then return 0; fi
  done
  return 1
}
begun=$(date +%s.%N)
cp "$data"/*.nc "$mount/cmip6/in/"
sync -f "$mount/cmip6/in"
while busy; do sleep 0.1; done
awk -v from="$begun" -v to="$(date +%s.%N)" 'BEGIN { printf "all means existed %.1f s after the first file\n", to - from }'
for rule in $rules; do
  echo "$rule: $(count "$rule") files"
  "$tidemill" rule log "$rule" --state failed | tail -n +2
done
"$directory/venv/bin/python" "$here/check.py" "$mount/cmip6"
