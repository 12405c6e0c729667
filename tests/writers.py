#!/usr/bin/env python3
"""Compares `tidemill reduce --local` with numpy on random files of netCDF4, h5py, zarr and xarray: types, packing, missing values,
chunks, filters, fill values, calendars and selections. An answer is right, or a refusal of a case that has no certain reading.

  python3 -m venv v; v/bin/pip install netCDF4 h5py zarr xarray cftime numpy; v/bin/python tests/writers.py target/debug/tidemill [CASES] [SEED]
"""

import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from fractions import Fraction
from pathlib import Path

import cftime
import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
BINARY = sys.argv[1]
CASES = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
# Reductions of one file.
EACH = 4
TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
CLASSIC = ["i1", "i2", "i4", "f4", "f8"]
OPERATIONS = ["count", "min", "max", "sum", "mean", "stddev", "range", "median", "stats"]
CALENDARS = ["standard", "proleptic_gregorian", "noleap", "360_day", "julian", "all_leap"]


class Case:
    """One variable `x` of one file: what is stored, which of it counts, and how it is unpacked."""

    def __init__(self, path, names, raw, mask, scale=None, offset=None, doubtful=None, time=None, latitude=None):
        self.path, self.names, self.raw, self.mask = path, names, raw, mask
        self.scale, self.offset, self.doubtful, self.time, self.latitude = scale, offset, doubtful, time, latitude
        self.about = []

    @property
    def packed(self):
        return self.scale is not None or self.offset is not None


def numbers(rng, kind, shape):
    """Values of a type, now and then its ends and neighbours of what doubles can tell apart."""
    count = math.prod(shape)
    if kind[0] == "f":
        values = np.array([rng.gauss(280, 30) for _ in range(count)], kind)
        for place in range(count):
            if rng.random() < 0.05:
                values[place] = rng.choice([0, -1, 1e20, -9999, np.nan, 1e-30])
        return values.reshape(shape)
    info = np.iinfo(kind)
    low, high = rng.choice([(0, 9), (max(info.min, -100), min(info.max, 100)), (info.min, info.max)])
    values = [rng.randint(low, high) for _ in range(count)]
    for place in range(count):
        if rng.random() < 0.1:
            values[place] = rng.choice([info.min, info.max, info.max - 1, 0, 1, min(info.max, 2**53), min(info.max, 2**53 + 1)])
    return np.array(values, kind).reshape(shape)


def layout(rng):
    """Names and lengths of dimensions, times and latitudes."""
    rank = rng.choice([1, 2, 2, 3])
    names = rng.sample(["time", "lat", "lon", "level"], rank)
    names.sort(key=["time", "level", "lat", "lon"].index)
    shape = tuple(rng.randint(1, 30 if name == "time" else 7) for name in names)
    time = latitude = None
    if "time" in names:
        units, step = rng.choice([("days", 1), ("hours", 6), ("minutes", 1440), ("seconds", 86400)])
        size = shape[names.index("time")]
        first = rng.randint(0, 40000)
        values = np.array([first + step * place * rng.choice([1, 7]) if units == "days" else first + step * place for place in range(size)], "f8")
        values = np.unique(values)
        values = np.concatenate([values, values[-1] + step * np.arange(1, size - len(values) + 1)]) if len(values) < size else values
        time = (values, f"{units} since {rng.choice(['1850-01-01', '1999-12-30 06:00:00', '2000-02-28'])}", rng.choice(CALENDARS))
    if "lat" in names:
        latitude = np.linspace(*rng.choice([(-60, 60), (75, -75)]), shape[names.index("lat")])
    return names, shape, time, latitude


def attributes(rng, kind, raw):
    """Attributes about missing values and packing: theirs, and why they may be refused."""
    said, doubtful = {}, None
    number = np.dtype(kind).type
    some = lambda: number(rng.choice(raw.ravel().tolist() + [0, 1, 99]))
    fill = None
    if rng.random() < 0.6:
        fill = some()
        if rng.random() < 0.2 and kind[0] != "f":
            fill = number(rng.choice([np.iinfo(kind).min, np.iinfo(kind).max]))
    if rng.random() < 0.3:
        said["missing_value"] = some() if rng.random() < 0.6 else np.array([some(), some()], kind)
    if rng.random() < 0.2:
        low, high = sorted([some(), some()])
        if not (np.isnan(low) or np.isnan(high)):
            said.update(rng.choice([{"valid_range": np.array([low, high], kind)}, {"valid_min": low}, {"valid_max": high}, {"valid_min": low, "valid_max": high}]))
    if kind[0] != "f" and rng.random() < 0.3:
        said["scale_factor"] = rng.choice([0.01, -0.5, 2.0, 1.0])
        if rng.random() < 0.7:
            said["add_offset"] = rng.choice([273.15, -100.0, 0.0])
    if kind[0] == "i" and rng.random() < 0.15:
        said["_Unsigned"] = "true"
    if rng.random() < 0.08:
        floats = [("missing_value", 1e300), ("missing_value", 0.3)] if kind != "f8" else []
        ends = [("valid_range", np.array([0.5, 7.5]))] if kind[0] != "f" and "scale_factor" in said else []
        doubtful, value = rng.choice([*floats, *ends, ("missing_value", "-9999"), ("valid_range", np.array([1], kind)), ("valid_min", "0"), ("scale_factor", "0.5")])
        said[doubtful] = value
    return fill, said, doubtful


def missing(raw, fill, said, defaults=None):
    """Which values are missing by the conventions, exactly; `raw` is already signed or unsigned as it is read."""
    mask = np.isnan(raw) if raw.dtype.kind == "f" else np.zeros(raw.shape, bool)
    view = lambda value: np.asarray(value, raw.dtype if raw.dtype.kind == "f" else None)
    typed = lambda value: view(value).astype(raw.dtype) if np.asarray(value).dtype.kind == raw.dtype.kind or raw.dtype.kind == "f" else np.asarray(value).view(raw.dtype)
    for value in ([] if fill is None else [fill]) + list(np.ravel(said.get("missing_value", []))):
        mask |= raw == typed(value)
    if fill is None and defaults is not None:
        mask |= raw == defaults
    low, high = said.get("valid_range", (said.get("valid_min"), said.get("valid_max")))
    with np.errstate(invalid="ignore"):
        mask |= (raw < typed(low)) if low is not None else False
        mask |= (raw > typed(high)) if high is not None else False
    return mask


def pieces(rng, shape):
    """Parts of an array that are written; what lies between is left to the fill value."""
    if rng.random() < 0.75:
        return [tuple(slice(None) for _ in shape)]
    size = shape[0]
    start = rng.randrange(size)
    return [(slice(start, rng.randint(start + 1, size)), *(slice(None) for _ in shape[1:]))]


def of_netcdf(rng, folder, number):
    form = rng.choice(["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4", "NETCDF4", "NETCDF4_CLASSIC"])
    kind = rng.choice(CLASSIC if form in ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4_CLASSIC"] else TYPES)
    names, shape, time, latitude = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, said, doubtful = attributes(rng, kind, raw)
    path = folder / f"{number}.nc"
    with netCDF4.Dataset(path, "w", format=form) as file:
        for place, name in enumerate(names):
            file.createDimension(name, None if place == 0 and rng.random() < 0.5 else shape[place])
        coordinates(rng, file, names, time, latitude)
        more = {}
        if form.startswith("NETCDF4"):
            if rng.random() < 0.6:
                more = {"zlib": rng.random() < 0.7, "shuffle": rng.random() < 0.5, "fletcher32": rng.random() < 0.3}
                more["chunksizes"] = tuple(rng.randint(1, size) for size in shape)
            more["endian"] = rng.choice(["native", "little", "big"])
        variable = file.createVariable("x", kind, tuple(names), fill_value=fill, **more)
        variable.setncatts(said)
        variable.set_auto_maskandscale(False)
        if form.startswith("NETCDF4") and rng.random() < 0.2:
            for part in pieces(rng, shape):
                variable[part] = raw[part]
            if len(file.dimensions[names[0]]) < shape[0] and shape[0] > 0:
                variable[shape[0] - 1] = raw[shape[0] - 1]
        else:
            variable[:] = raw
    with netCDF4.Dataset(path) as file:
        file["x"].set_auto_maskandscale(False)
        raw = file["x"][:]
    raw = raw.astype(raw.dtype.newbyteorder("="))
    if said.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    default = netCDF4.default_fillvals[kind] if kind not in ["i1", "u1"] else None
    if default is not None:
        default = np.array(default, kind)
        default = default.view(raw.dtype) if raw.dtype.kind == "u" else default
    case = Case(path, names, raw, None if doubtful else missing(raw, fill, said, default), said.get("scale_factor"), said.get("add_offset"), doubtful, time, latitude)
    case.about = [form, kind, fill, said]
    # The library itself, but for default fill values of one byte, which it has against the conventions.
    if not doubtful and "_Unsigned" not in said and (fill is not None or kind not in ["i1", "u1"]):
        with netCDF4.Dataset(path) as file:
            file["x"].set_auto_scale(False)
            theirs = np.ma.getmaskarray(np.ma.masked_invalid(np.ma.asarray(file["x"][:])))
        assert (theirs == case.mask).all(), ("the model is not netCDF4's", case.about, theirs, case.mask)
    return case


def coordinates(rng, file, names, time, latitude):
    if time is not None:
        variable = file.createVariable("time", rng.choice(["f8", "i4"]), ("time",))
        variable.setncatts({"units": time[1], "calendar": time[2]})
        variable[:] = time[0]
    if latitude is not None:
        file.createVariable("lat", "f8", ("lat",))[:] = latitude


def of_h5py(rng, folder, number):
    kind = rng.choice(TYPES)
    names, shape, _, _ = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, said, doubtful = attributes(rng, kind, raw)
    path = folder / f"{number}.h5"
    with h5py.File(path, "w", libver=rng.choice(["earliest", "latest"]), userblock_size=rng.choice([0, 0, 512, 1024])) as file:
        more = {}
        if rng.random() < 0.6:
            more = {"chunks": tuple(rng.randint(1, size) for size in shape), "shuffle": rng.random() < 0.5, "fletcher32": rng.random() < 0.3}
            more["compression"] = rng.choice([None, "gzip", "lzf"])
            more["maxshape"] = rng.choice([None, (None, *shape[1:]), (None,) * len(shape)])
        filled = rng.choice([None, None, raw.ravel()[0]])
        order = rng.choice("<>")
        data = file.create_dataset("x", shape, np.dtype(kind).newbyteorder(order), fillvalue=filled, **more)
        for part in pieces(rng, shape):
            data[part] = raw[part]
        if fill is not None:
            data.attrs["_FillValue"] = rng.choice([fill, np.array([fill])])
        for name, value in said.items():
            data.attrs[name] = value
    with h5py.File(path) as file:
        raw = file["x"][:]
    raw = raw.astype(raw.dtype.newbyteorder("="))
    if said.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    case = Case(path, [f"dim_{place}" for place in range(len(shape))], raw, None if doubtful else missing(raw, fill, said), said.get("scale_factor"), said.get("add_offset"), doubtful)
    case.about = ["h5py", kind, fill, said, more]
    return case


def of_zarr(rng, folder, number):
    version, kind = rng.choice([2, 3]), rng.choice(TYPES)
    names, shape, _, _ = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, said, doubtful = attributes(rng, kind, raw)
    if doubtful == "missing_value" and kind == "f4" and said[doubtful] == 0.3:
        # JSON has no types: decimal numbers are those of the variable.
        doubtful = None
    path = folder / f"{number}.zarr"
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    chunks = tuple(rng.randint(1, size) for size in shape)
    more = {"fill_value": fill if fill is not None else (None if version == 2 else 0)}
    if version == 3:
        more["dimension_names"] = names
        more["compressors"] = rng.choice([None, [zarr.codecs.ZstdCodec()], [zarr.codecs.GzipCodec()], [zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle", typesize=8)], [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]])
        if rng.random() < 0.3:
            more["shards"] = tuple(size * rng.randint(1, 3) for size in chunks)
        if rng.random() < 0.3:
            more["filters"] = [zarr.codecs.TransposeCodec(order=tuple(rng.sample(range(len(shape)), len(shape))))]
        if rng.random() < 0.3:
            more["serializer"] = zarr.codecs.BytesCodec(endian=rng.choice(["little", "big"]))
    else:
        more["order"] = rng.choice("CF")
        more["chunk_key_encoding"] = {"name": "v2", "separator": rng.choice("./")}
    array = group.create_array("x", shape=shape, chunks=chunks, dtype=np.dtype(kind).newbyteorder(rng.choice("<>")) if version == 2 else kind, **more)
    for part in pieces(rng, shape):
        array[part] = raw[part]
    raw = array[:]
    raw = raw.astype(raw.dtype.newbyteorder("="))
    array.attrs.update({name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for name, value in said.items()})
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = names
    if said.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    masked = fill if version == 2 else None
    if version == 2 and masked is None:
        assert array.fill_value is None, array.fill_value
    case = Case(path, names, raw, None if doubtful else missing(raw, masked, said), said.get("scale_factor"), said.get("add_offset"), doubtful)
    case.about = [f"zarr {version}", kind, fill, said, {name: str(value) for name, value in more.items()}]
    return case


def of_xarray(rng, folder, number):
    """As xarray writes and reads it: what it finds missing when it reads is what is missing."""
    engine = rng.choice(["netcdf4", "zarr2", "zarr3"])
    names, shape, _, _ = layout(rng)
    values = np.array([rng.gauss(10, 5) for _ in range(math.prod(shape))], rng.choice(["f4", "f8"])).reshape(shape)
    values[np.array([rng.random() < 0.2 for _ in range(values.size)]).reshape(shape)] = np.nan
    dataset = xr.Dataset({"x": (names, values)}, attrs={"nothing": float("nan")} if rng.random() < 0.3 else {})
    encoding = rng.choice([
        {}, {"_FillValue": values.dtype.type(-9999)}, {"_FillValue": values.dtype.type(np.nan)},
        {"dtype": "i2", "scale_factor": 0.01, "add_offset": 10.0, "_FillValue": -32768}, {"dtype": "i4", "scale_factor": 0.001, "_FillValue": 2**31 - 1},
        {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255}, {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255, "_Unsigned": "true"},
    ])
    encoding = dict(encoding)
    if encoding.pop("_Unsigned", None):
        encoding["dtype"] = "u1"
    dataset.x.encoding.update(encoding)
    path = folder / f"{number}.{'nc' if engine == 'netcdf4' else 'zarr'}"
    opened = {"mask_and_scale": True}
    if engine == "netcdf4":
        dataset.to_netcdf(path, engine="netcdf4")
    else:
        dataset.to_zarr(path, mode="w", zarr_format=int(engine[-1]), consolidated=rng.random() < 0.5)
        opened["engine"] = "zarr"
    with xr.open_dataset(path, **opened) as file:
        mask = np.isnan(file.x.values)
    with xr.open_dataset(path, **{**opened, "mask_and_scale": False}) as file:
        raw, said = file.x.values, file.x.attrs
    case = Case(path, names, raw, mask, said.get("scale_factor"), said.get("add_offset"))
    case.about = [engine, str(raw.dtype), encoding, said]
    return case


KEYS = {"year": lambda one: (one.year,), "month": lambda one: (one.year, one.month), "day": lambda one: (one.year, one.month, one.day),
        "hour": lambda one: (one.year, one.month, one.day, one.hour), "climatological-month": lambda one: (one.month,), "climatological-hour": lambda one: (one.hour,)}


def alike(ours, theirs, exact, scale):
    if theirs is None or ours is None:
        return ours is None and theirs is None
    if exact:
        return int(ours) == theirs
    ours = float(ours)
    return ours == theirs or math.isclose(ours, theirs, rel_tol=1e-11, abs_tol=1e-11 * scale) or math.isnan(ours) and math.isnan(theirs)


def answers(case, operation, values):
    """What is found of a list of values as they are stored."""
    whole = case.raw.dtype.kind in "iu" and not case.packed
    if operation == "count":
        return len(values)
    if whole:
        number = [int(value) for value in values]
    else:
        scale, offset = (1.0 if case.scale is None else case.scale), (0.0 if case.offset is None else case.offset)
        number = [float(value) * scale + offset if case.packed else float(value) for value in values]
    exact = [Fraction(one) for one in number] if all(map(math.isfinite, number)) else None
    if operation == "sum":
        return sum(number) if whole else (float(sum(exact)) if exact is not None else math.fsum(number))
    if not number:
        return None
    if operation == "mean":
        return float(sum(exact) / len(exact))
    if operation == "stddev":
        mean = sum(exact) / len(exact)
        return math.sqrt(float(sum((one - mean) ** 2 for one in exact) / len(exact)))
    if operation == "median":
        return float(np.median(np.array(number, "f8")))
    return {"min": min, "max": max, "range": lambda all: max(all) - min(all)}[operation](number)


def one(rng, case):
    shape, names = case.raw.shape, case.names
    slices, where, indices = [slice(None)] * len(shape), [], [np.arange(size) for size in shape]
    for axis, size in enumerate(shape):
        if names[axis] == "lat" and case.latitude is not None and size > 2 and rng.random() < 0.4:
            low, high = sorted(rng.sample(case.latitude.tolist(), 2))
            low, high = low - 0.5, high + 0.5
            indices[axis] = np.flatnonzero((case.latitude >= low) & (case.latitude <= high))
            where.append(f"lat={low!r}:{high!r}")
        elif size > 1 and rng.random() < 0.4:
            start = rng.randrange(size)
            end, step = rng.randint(start + 1, size), rng.randint(1, 4)
            indices[axis] = np.arange(start, end, step)
            where.append(f"{names[axis]}=[{start}:{end}:{step}]")
    operation = rng.choice(OPERATIONS)
    over = sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))
    command = [BINARY, "--json", "reduce", operation, f"{case.path}:x", "--local", "--over", ",".join(names[axis] for axis in over)]
    command += ["--where", ",".join(where)] if where else []
    by = None
    if case.time is not None and rng.random() < 0.5:
        by = rng.choice(list(KEYS))
        command += ["--by", by]
    said = subprocess.run(command, capture_output=True, text=True)
    if case.doubtful:
        assert said.returncode and case.doubtful in said.stderr and case.path.name in said.stderr and " x" in said.stderr, ("not refused by name", command, case.about, said.stdout, said.stderr)
        return False
    assert said.returncode == 0, ("refused", command, case.about, said.stderr)
    found = json.loads(said.stdout)["values"]
    raw, mask = case.raw[np.ix_(*indices)], case.mask[np.ix_(*indices)]
    axis = names.index("time") if by else None
    targets = [place for place in range(len(shape)) if place not in over or place == axis]
    keys = list(range(len(shape)))
    if by:
        times = cftime.num2date(case.time[0], case.time[1], case.time[2])[indices[axis]]
        keys = [KEYS[by](moment) for moment in times]
        groups = sorted(set(keys))
    lengths = [len(groups) if place == axis else raw.shape[place] for place in targets]
    cells = [[] for _ in range(math.prod(lengths))]
    for index in np.ndindex(*raw.shape):
        if not mask[index]:
            cell = 0
            for place, length in zip(targets, lengths):
                cell = cell * length + (groups.index(keys[index[place]]) if place == axis else index[place])
            cells[cell].append(raw[index])
    whole = case.raw.dtype.kind in "iu" and not case.packed
    for what in ["count", "min", "max", "sum", "mean", "stddev"] if operation == "stats" else [operation]:
        ours = found[what] if isinstance(found[what], list) else [found[what]]
        assert len(ours) == len(cells), (command, case.about, len(ours), len(cells))
        exact = what == "count" or whole and what in ["min", "max", "sum", "range"]
        for mine, values in zip(ours, cells):
            theirs = answers(case, what, values)
            largest = max([abs(float(value)) for value in values], default=0) * abs(case.scale or 1) + abs(case.offset or 0)
            assert alike(mine, theirs, exact, largest * max(1, len(values)) ** 0.5), (command, case.about, what, mine, theirs)
    return True


def main():
    rng, answered, refused, wrong = random.Random(SEED), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        number = 0
        while answered + refused + wrong < CASES:
            number += 1
            below = Path(folder) / str(number)
            below.mkdir()
            case = rng.choice([of_netcdf, of_netcdf, of_h5py, of_zarr, of_xarray])(rng, below, number)
            for _ in range(EACH):
                try:
                    if one(rng, case):
                        answered += 1
                    else:
                        refused += 1
                except AssertionError as error:
                    wrong += 1
                    print("WRONG", *error.args[0], sep="\n  ")
            shutil.rmtree(below)
    print(f"{answered + refused + wrong} reductions of {number} files: {answered} right, {refused} refused for a reason, {wrong} wrong (seed {SEED})")
    sys.exit(wrong > 0)


main()
