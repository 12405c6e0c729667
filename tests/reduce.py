#!/usr/bin/env python3
"""Compares `tidemill reduce --local` with numpy on values that netCDF4, h5py and zarr read: random selections, operations and groupings
over the fixtures of crates/format and over generated files. Series of files and times are compared with xarray and cftime. Integers must
be equal, and floats within the bound of docs/reduce.md.

  python3 -m venv v; v/bin/pip install netCDF4 h5py zarr xarray cftime numpy; v/bin/python tests/reduce.py target/debug/tidemill [CASES] [SEED]
"""

import json
import math
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import cftime
import netCDF4
import numcodecs
import numpy as np
import xarray
import zarr

FIXTURES = Path(__file__).parent.parent / "crates/format/tests/fixtures"
BINARY = sys.argv[1]
CASES = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
OPERATIONS = ["count", "min", "max", "sum", "mean", "stddev", "range", "stats", "median", "quantile", "histogram"]


def generated(directory):
    """Makes files with times, packed values, gaps and all types, in all formats."""
    rng = np.random.default_rng(SEED)
    shape = (800, 9, 14)
    for form in ["NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA", "NETCDF4"]:
        path = directory / f"{form.lower()}.nc"
        with netCDF4.Dataset(path, "w", format=form) as file:
            for name, size in zip(["time", "lat", "lon"], [None, *shape[1:]]):
                file.createDimension(name, size)
            file.createVariable("time", "f8", ("time",)).setncatts({"units": "hours since 1899-12-01", "calendar": "standard"})
            file["time"][:] = np.arange(shape[0]) * 30.0
            file.createVariable("lat", "f4", ("lat",))[:] = np.linspace(80, -80, shape[1])
            file.createVariable("lon", "f8", ("lon",))[:] = np.linspace(0, 325, shape[2])
            types = ["i1", "i2", "i4", "f4", "f8"]
            if form != "NETCDF3_CLASSIC":
                types += ["u1", "u2", "u4", "i8", "u8"]
            for number, kind in enumerate(types):
                more = {"zlib": True, "shuffle": bool(number % 2), "chunksizes": (50, 5, 7)} if form == "NETCDF4" else {}
                variable = file.createVariable(f"v_{kind}", kind, ("time", "lat", "lon"), fill_value=99, **more)
                values = rng.normal(280, 30, shape) if kind[0] == "f" else rng.integers(0, 120, shape)
                if kind in ["i8", "u8"]:
                    values = rng.integers(0, 2**62, shape)
                variable[:] = values.astype(kind)
            packed = file.createVariable("packed", "i2", ("time", "lat"), fill_value=-32768)
            packed.setncatts({"scale_factor": 0.01, "add_offset": 273.15})
            packed[:] = np.ma.masked_greater(rng.normal(280, 20, shape[:2]), 320)
            ranged = file.createVariable("ranged", "f4", ("time", "lat"))
            ranged.setncatts({"valid_range": np.array([-1, 1.5], "f4"), "missing_value": np.float32(0.25)})
            ranged[:] = rng.normal(0, 1, shape[:2])
        yield path
    for version, name in [(2, "zlib"), (3, "zstd"), *((2, f"blosc-{inner}-{shuffle}") for inner in ["lz4", "zstd", "zlib"] for shuffle in [0, 1])]:
        path = directory / f"{name}.zarr"
        group = zarr.open_group(str(path), mode="w", zarr_format=version)
        more = {"dimension_names": ["time", "lat"]} if version == 3 else {}
        codec = {"compressors": [zarr.codecs.ZstdCodec()]} if version == 3 else {"compressors": numcodecs.Zlib(5) if name == "zlib" else numcodecs.Blosc(name.split("-")[1], 5, int(name[-1]))}
        array = group.create_array("x", shape=(500, 40), chunks=(60, 17), dtype="f4", **more, **codec)
        array[:] = rng.normal(0, 5, (500, 40))
        yield path


def opened(path):
    """Returns the numeric variables by name, with missing values and packing applied: masked arrays of 64-bit floats or integers."""
    if path.suffix == ".zarr":
        group = zarr.open_group(str(path), mode="r")
        return {name: (array.metadata.dimension_names if array.metadata.zarr_format == 3 else None, np.ma.masked_invalid(array[:]))
                for name, array in group.arrays() if array.ndim and array.dtype.kind in "iuf" and not array.attrs.get("scale_factor")}
    found = {}
    with netCDF4.Dataset(path) as file:
        for name, variable in file.variables.items():
            if getattr(variable.dtype, "kind", None) not in ["i", "u", "f"] or not variable.ndim:
                continue
            values = np.ma.masked_invalid(np.ma.asarray(variable[:]))
            if values.dtype.kind == "f":
                # The library unpacks in the precision of the attributes; this unpacks again in doubles.
                raw = variable
                raw.set_auto_scale(False)
                scale, offset = (float(getattr(raw, key, none)) for key, none in [("scale_factor", 1), ("add_offset", 0)])
                values = np.ma.array(np.ma.getdata(raw[:]).astype("f8") * scale + offset, mask=np.ma.getmaskarray(values))
            found[name] = (variable.dimensions, values)
    return found


def times(path):
    with xarray.open_dataset(path, decode_times=True) as file:
        return file.time.values.astype("datetime64[s]")


KEYS = {
    "year": lambda t: t.astype("datetime64[Y]").astype(int),
    "month": lambda t: t.astype("datetime64[M]").astype(int),
    "season": lambda t: (t.astype("datetime64[M]").astype(int) + 1) // 3,
    "day": lambda t: t.astype("datetime64[D]").astype(int),
    "hour": lambda t: t.astype("datetime64[h]").astype(int),
    "climatological-month": lambda t: t.astype("datetime64[M]").astype(int) % 12,
    "climatological-season": lambda t: (t.astype("datetime64[M]").astype(int) + 1) // 3 % 4,
    "climatological-hour": lambda t: t.astype("datetime64[h]").astype(int) % 24,
}


def numbers(operation, values, axes, ddof):
    """Returns numpy's number for each cell; None for a cell without values."""
    axes = tuple(axes)
    count = np.asarray(np.ma.count(values, axis=axes))
    whole = values.dtype.kind in "iu"
    wide = values if whole else values.astype("f8")
    if operation == "count":
        return count.ravel().tolist()
    if operation == "sum":
        # Sums of integers are exact here, while numpy's wrap.
        filled = np.ma.filled(wide, 0)
        return np.asarray(filled.astype(object).sum(axis=axes) if whole else filled.sum(axis=axes), dtype=object if whole else None).ravel().tolist()
    real = values.astype("f8")
    if operation.startswith("histogram"):
        return histogram(real, axes, *operation.split(":")[1:])
    if operation == "median" or operation.startswith("q"):
        quantile = 0.5 if operation == "median" else float(operation[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = np.nanquantile(np.ma.filled(real, np.nan), quantile, axis=axes)
        return [None if math.isnan(value) else value for value in np.asarray(found).ravel().tolist()]
    high, low = (lambda: np.ma.asarray(wide.max(axis=axes))), (lambda: np.ma.asarray(wide.min(axis=axes)))
    with np.errstate(all="ignore"):
        found = {
            "min": lambda: wide.min(axis=axes),
            "max": lambda: wide.max(axis=axes),
            "range": lambda: np.ma.array(np.asarray(np.ma.getdata(high()).astype(object) - np.ma.getdata(low()).astype(object), dtype=object), mask=np.ma.getmaskarray(high())),
            "mean": lambda: real.mean(axis=axes),
            "stddev": lambda: real.std(axis=axes, ddof=ddof),
        }[operation]()
    found = np.ma.asarray(found)
    found, none = np.where(np.ma.getmaskarray(found), None, np.ma.getdata(found).astype(object)), count <= (ddof if operation == "stddev" else 0)
    return [None if skip else value for value, skip in zip(np.asarray(found).ravel().tolist(), none.ravel())]


def histogram(values, axes, low, high, bins):
    """Returns numpy's counts for each cell, with the numbers of values below and above the bins."""
    kept = [axis for axis in range(values.ndim) if axis not in axes]
    cells = math.prod(values.shape[axis] for axis in kept)
    rows = np.ma.filled(np.transpose(values, kept + list(axes)), np.nan).reshape(cells, -1)
    found = []
    for row in rows:
        row = row[~np.isnan(row)]
        counts, edges = np.histogram(row, int(bins), (float(low), float(high)))
        found += [int((row < edges[0]).sum()), *counts.tolist(), int((row > edges[-1]).sum())]
    return found


def bins_of(rng, part):
    """Returns requested bins and their edges: between the extremes, or between two numbers."""
    all_of = part.compressed().astype("f8")
    all_of = all_of[~np.isnan(all_of)]
    low, high = (float(all_of.min()), float(all_of.max())) if all_of.size else (0.0, 1.0)
    bins = rng.choice([1, 3, 10])
    near = not math.isfinite(high - low) or 0 < high - low < 1e-9 * max(abs(low), abs(high)) or abs(low) > 1e15
    if rng.random() < 0.5 and not near:
        return str(bins), f"histogram:{low!r}:{high!r}:{bins}"
    if near or low == high:
        low, high = -2.0, 3.0
    low, high = low + (high - low) * rng.choice([-0.1, 0, 0.3]), low + (high - low) * rng.choice([0.7, 1])
    return f"{low!r}:{high!r}:{bins}", f"histogram:{low!r}:{high!r}:{bins}"


def alike(ours, theirs, values):
    if ours is None or theirs is None:
        return ours is None and (theirs is None or math.isnan(theirs))
    if isinstance(theirs, int):
        # Integers beyond 64 bits are text.
        return int(ours) == theirs
    # numpy sums in pairs: both results are this near to the exact result.
    scale = max(abs(theirs), float(np.ma.abs(values).astype("f8").max()) if values.count() else 0)
    return ours == theirs or math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12 * scale * max(1, values.count() ** 0.5))


def one(rng, path, name, dimensions, values):
    rank = values.ndim
    slices, where = [slice(None)] * rank, []
    names = dimensions or [f"dim_{axis}" for axis in range(rank)]
    for axis in range(rank):
        if rng.random() < 0.5 and values.shape[axis] > 1:
            start = rng.randrange(values.shape[axis])
            end, step = rng.randrange(start + 1, values.shape[axis] + 1), rng.randrange(1, 5)
            slices[axis] = slice(start, end, step)
            where.append(f"{names[axis]}=[{start}:{end}:{step}]")
    operation = rng.choice(OPERATIONS)
    over = rng.sample(range(rank), rng.randint(1, rank))
    ddof = rng.randrange(2)
    command = [BINARY, "--json", "reduce", operation, f"{path}:{name}", "--local", "--ddof", str(ddof), "--over", ",".join(names[axis] for axis in over)]
    command += ["--where", ",".join(where)] if where else []
    quantiles = [f"q{rng.choice([0, 0.05, 0.25, 1 / 3, 0.5, 0.9, 1])}" for _ in range(rng.randint(1, 3))]
    command += ["--q", ",".join(quantile[1:] for quantile in quantiles)] if operation == "quantile" else []
    part, by = values[tuple(slices)], None
    if "time" in names and path.suffix == ".nc" and "netcdf" in path.name and path.parent != FIXTURES and rng.random() < 0.4:
        by = rng.choice(list(KEYS))
        command += ["--by", by]
    if operation == "histogram":
        bins, counted = bins_of(rng, part)
        command += ["--bins", bins]
    printed = subprocess.run(command, capture_output=True, text=True)
    assert printed.returncode == 0, (command, printed.stderr)
    result = json.loads(printed.stdout)["values"]
    for what in ["count", "min", "max", "sum", "mean", "stddev"] if operation == "stats" else quantiles if operation == "quantile" else [counted] if operation == "histogram" else [operation]:
        if by is None:
            expected = numbers(what, part, over, ddof)
        else:
            axis = names.index("time")
            keys = KEYS[by](times(path)[slices[axis]])
            axes = sorted({*over, axis})
            groups = [numbers(what, np.take(part, np.flatnonzero(keys == key), axis), axes, ddof) for key in sorted(set(keys))]
            # The groups take the place of the times among the remaining dimensions.
            before = math.prod(part.shape[other] for other in range(axis) if other not in axes)
            expected = np.array(groups, dtype=object).reshape(len(groups), before, -1).swapaxes(0, 1).ravel().tolist()
        ours = result["count" if operation == "histogram" else what]
        ours = ours if isinstance(ours, list) else [ours]
        assert len(ours) == len(expected), (command, len(ours), len(expected))
        for mine, theirs in zip(ours, expected):
            assert alike(mine, theirs, part), (command, what, mine, theirs)


def asked(operation, files, *more):
    """Runs the program on local files, and returns the result or the reason of its refusal."""
    printed = subprocess.run([BINARY, "--json", "reduce", operation, files, "--local", *more], capture_output=True, text=True)
    return json.loads(printed.stdout) if printed.returncode == 0 else printed.stderr


def reported(operation, files, *more):
    found = asked(operation, files, *more)
    assert not isinstance(found, str), found
    values = found["values"][operation]
    return np.asarray([math.nan if value is None else float(value) for value in (values if isinstance(values, list) else [values])])


def series(directory):
    """Compares series of files, selections, times and results with xarray."""
    rng = np.random.default_rng(SEED)
    time = xarray.date_range("2000-11-20", periods=300, freq="6h", use_cftime=False)
    lat, lon = np.linspace(60, -60, 5).astype("f4"), np.arange(0, 360, 30.0)
    every = xarray.Dataset({"tas": (("time", "lat", "lon"), rng.normal(280, 9, (300, 5, 12)).astype("f4"))}, {"time": time, "lat": lat, "lon": lon})
    every.lon.attrs["units"], every.tas.attrs = "degrees_east", {"units": "K", "standard_name": "air_temperature"}
    one = directory / "series"
    one.mkdir()
    for part, unit in enumerate(["days since 1850-01-01", "hours since 2000-01-01", "seconds since 1999-12-31"]):
        every.isel(time=slice(part * 100, part * 100 + 100)).to_netcdf(one / f"{'cab'[part]}.nc", encoding={"time": {"units": unit, "dtype": "f8"}})
    files, wide = f"{one}/*.nc:tas", every.tas.astype("f8")
    for ours, theirs in [
        (reported("mean", files, "--by", "month", "--over", "time"), wide.resample(time="MS").mean()),
        (reported("max", files, "--by", "day", "--over", "time,lon"), wide.resample(time="1D").max().max("lon")),
        (reported("mean", files, "--over", "lat,lon", "--where", "time=2000-12-01..2000-12-31T12"), wide.sel(time=slice("2000-12-01", "2000-12-31T12")).mean(("lat", "lon"))),
        (reported("sum", files, "--over", "time", "--where", "lon=-60:60,lat=0:60"), wide.sel(lat=slice(60, 0)).roll(lon=6).isel(lon=slice(4, 9)).sum("time")),
        (reported("mean", files, "--over", "time,lat", "--where", "lon=330:30"), wide.isel(lon=[11, 0, 1]).mean(("time", "lat"))),
    ]:
        theirs = np.asarray(theirs).ravel()
        assert ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-12, equal_nan=True), (ours, theirs)
    result = directory / "months.nc"
    asked_for = [BINARY, "reduce", "max", files, "--local", "--by", "month", "--over", "time", "--output", str(result)]
    subprocess.run(asked_for, check=True)
    with xarray.open_dataset(result) as found:
        theirs = every.tas.resample(time="MS").max()
        assert found.tas.dtype == "f4" and np.array_equal(found.tas, theirs)
        assert found.tas.attrs["cell_methods"] == "time: maximum (interval: 6 hours)" and found.tas.attrs["standard_name"] == "air_temperature"
        ends = found.time_bnds.values.astype("datetime64[D]")
        assert ends[:, 0].tolist() == theirs.time.values.astype("datetime64[D]").tolist() and ends[0, 1] == ends[1, 0], ends
        assert "reduce max" in found.attrs["history"]
    (one / "d.nc").write_bytes((one / "a.nc").read_bytes())
    assert "both have 2000-12-15" in asked("mean", files), asked("mean", files)
    (one / "d.nc").unlink()
    later = every.isel(time=slice(0, 9), lat=slice(None, None, -1)).assign_coords(time=time[:9] + np.timedelta64(500, "D"))
    later.to_netcdf(one / "d.nc")
    assert "coordinate lat" in asked("mean", files), asked("mean", files)
    members = directory / "members"
    members.mkdir()
    for member in range(3):
        (every.isel(time=slice(0, 20)) + member).to_netcdf(members / f"{member}.nc")
    assert np.allclose(reported("mean", f"{members}/*.nc:tas", "--ensemble", "--over", "member"), (every.tas[:20].astype("f8") + 1).values.ravel(), rtol=1e-6)


def calendars(directory):
    """Compares the months of all calendars with cftime, for all meanings of time stamps."""
    for calendar in ["standard", "gregorian", "proleptic_gregorian", "julian", "noleap", "365_day", "all_leap", "366_day", "360_day"]:
        for units in ["days since 1582-09-01", "microseconds since 1600-02-01", "hours since 1899-12-01"]:
            path = directory / f"{calendar}_{units.split()[0]}.nc"
            dates = cftime.num2date(np.arange(70), "days" + units[units.index(" "):], calendar)
            with netCDF4.Dataset(path, "w") as file:
                file.createDimension("time", None)
                variable = file.createVariable("time", "f8", ("time",))
                variable.setncatts({"units": units, "calendar": calendar})
                variable[:] = cftime.date2num(dates, units, calendar)
                file.createVariable("tas", "f4", ("time",))[:] = 1
            keys = [(date.year, date.month) for date in dates]
            assert reported("sum", f"{path}:tas", "--by", "month").tolist() == [keys.count(key) for key in sorted(set(keys))], path
    path = directory / "ends.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", 3), file.createDimension("two", 2)
        file.createVariable("time", "f8", ("time",)).setncatts({"units": "days since 2001-01-01", "calendar": "noleap", "bounds": "time_bnds"})
        file["time"][:] = [31, 59, 90]
        file.createVariable("time_bnds", "f8", ("time", "two"))[:] = [[0, 31], [31, 59], [59, 90]]
        file.createVariable("tas", "f4", ("time",))[:] = [1, 2, 4]
    assert "--time-at" in asked("mean", f"{path}:tas", "--by", "month")
    assert asked("mean", f"{path}:tas", "--by", "month", "--time-at", "bounds")["dimensions"][0]["labels"][0] == "2001-01"
    assert reported("mean", f"{path}:tas", "--where", "time=2001-02", "--time-at", "end").tolist() == [2]


def main():
    rng = random.Random(SEED)
    with tempfile.TemporaryDirectory() as directory:
        series(Path(directory))
        calendars(Path(directory))
        paths = [*generated(Path(directory)), *(FIXTURES / name for name in ["cdf1.nc", "cdf2.nc", "cdf5.nc", "netcdf4.nc", "netcdf4-classic.nc"])]
        known = [(path, name, *found) for path in paths for name, found in opened(path).items()]
        for _ in range(CASES):
            one(rng, *rng.choice(known))
    print(f"{CASES} reductions of {len(known)} variables are those of numpy (seed {SEED})")


main()
