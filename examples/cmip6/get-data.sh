#!/usr/bin/env bash
# Fetches 326 small CMIP6 files (air temperature, daily and monthly, of many models) into a directory: 23 MB.
#
# usage: get-data.sh DIRECTORY
set -euo pipefail
directory=${1:?usage: get-data.sh DIRECTORY}
mkdir -p "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --dest "$work" esmvaltool-sample-data==0.0.4
python3 - "$work" "$directory" <<'END'
import pathlib, sys, zipfile

work, directory = map(pathlib.Path, sys.argv[1:])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.endswith(".nc"):
                (directory / pathlib.Path(name).name).write_bytes(packed.read(name))
END
echo "$(find "$directory" -name '*.nc' | wc -l) files in $directory"
