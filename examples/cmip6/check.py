#!/usr/bin/env python3
"""Compares the means of the rules with those of xarray: `check.py DIRECTORY`, with in/, monthly/, annual/ and perhaps cdo/ in it."""
import pathlib
import sys

import numpy as np
import xarray as xr

# Default fill value of the netCDF library, for files without `_FillValue`: `reduce` skips it, xarray and CDO do not.
FILL = np.float32(9.969209968386869e36)
directory = pathlib.Path(sys.argv[1])


def expected(path, period, filled):
    with xr.open_dataset(path, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) as data:
        values = data[path.name.split("_")[0]].load()
    if not filled:
        values = values.where(values != FILL)
    values = values.astype("f8")
    time = values.time.dt
    key = time.year * 12 + (time.month if period == "month" else 0)
    return values.groupby(key.rename("period")).mean("time", skipna=True).transpose("period", ...).values


worst = 0
for made, period in [("monthly", "month"), ("annual", "year"), ("cdo", "month")]:
    files = sorted((directory / made).glob("*.nc"))
    count = differ = 0
    largest = 0.0
    for path in files:
        wanted = expected(directory / "in" / path.name, period, filled=made == "cdo")
        with xr.open_dataset(path, decode_times=False) as data:
            got = data[path.name.split("_")[0]].values.astype("f8")
        if made != "cdo":
            got = np.where(got == FILL, np.nan, got)
        if made == "cdo":
            # Means of CDO have the type of the file.
            wanted = wanted.astype("f4").astype("f8")
        if got.shape != wanted.shape or (np.isnan(got) != np.isnan(wanted)).any():
            print(f"{path}: {got.shape}, not {wanted.shape}, or values are missing elsewhere")
            differ += 1
            continue
        count += int((~np.isnan(wanted)).sum())
        with np.errstate(invalid="ignore"):
            difference = np.nanmax(np.abs(got - wanted) / np.abs(wanted), initial=0.0)
        largest = max(largest, float(difference))
    if files:
        print(f"{made}: {len(files)} files, {count} means, largest relative difference to xarray {largest:.1e}, {differ} files of another shape")
    # The bounds allow sums of f64 in another order, and CDO's rounding to f32.
    worst += differ if made != "cdo" else 0
    worst += largest > (2e-7 if made == "cdo" else 1e-12)
sys.exit(worst > 0)
