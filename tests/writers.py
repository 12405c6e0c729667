#!/usr/bin/env python3
"""Compares `tidemill reduce --local` with numpy on random files of netCDF4, h5py, zarr, xarray (netCDF4, h5netcdf, scipy, zarr),
astropy, and, where they are installed, NCO, CDO and GDAL: types, packing, missing values, chunks, filters, fill values, calendars,
selections and series of files. Each answer must be right, or must refuse a case without a certain reading.

  python3 -m venv v; v/bin/pip install netCDF4 h5py h5netcdf scipy zarr xarray astropy cftime numpy
  v/bin/python tests/writers.py target/debug/tidemill [CASES] [SEED] [SERIES]
"""

import datetime
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import cftime
import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr
from astropy.io import fits

warnings.simplefilter("ignore")
BINARY = sys.argv[1]
CASES = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
# Weight of series of files among the ways to make a case.
SERIES = int(sys.argv[4]) if len(sys.argv) > 4 else 3
# Number of reductions of one file.
EACH = 8
TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
CLASSIC = ["i1", "i2", "i4", "f4", "f8"]
OPERATIONS = ["count", "min", "max", "sum", "mean", "stddev", "range", "median", "stats"]
CALENDARS = ["standard", "proleptic_gregorian", "noleap", "360_day", "julian", "all_leap"]


class Case:
    """Variable `x` of one file: its stored values, its mask and its packing."""

    def __init__(self, path, names, raw, mask, scale=None, offset=None, doubtful=None, time=None, latitude=None):
        self.path, self.names, self.raw, self.mask = path, names, raw, mask
        self.scale, self.offset, self.doubtful, self.time, self.latitude = scale, offset, doubtful, time, latitude
        self.about, self.variable, self.writer, self.members = [], "x", None, False

    @property
    def packed(self):
        return self.scale is not None or self.offset is not None


def numbers(rng, kind, shape):
    """Returns values of a type, sometimes with its extremes and with neighbours of numbers that doubles can represent."""
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
    """Returns names and lengths of dimensions, times and latitudes."""
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
    """Returns attributes for missing values and packing, and the reason for which they may be refused."""
    printed, doubtful = {}, None
    number = np.dtype(kind).type
    some = lambda: number(rng.choice(raw.ravel().tolist() + [0, 1, 99]))
    fill = None
    if rng.random() < 0.6:
        fill = some()
        if rng.random() < 0.2 and kind[0] != "f":
            fill = number(rng.choice([np.iinfo(kind).min, np.iinfo(kind).max]))
    if rng.random() < 0.3:
        printed["missing_value"] = some() if rng.random() < 0.6 else np.array([some(), some()], kind)
    if rng.random() < 0.2:
        low, high = sorted([some(), some()])
        if not (np.isnan(low) or np.isnan(high)):
            printed.update(rng.choice([{"valid_range": np.array([low, high], kind)}, {"valid_min": low}, {"valid_max": high}, {"valid_min": low, "valid_max": high}]))
    if kind[0] != "f" and rng.random() < 0.3:
        printed["scale_factor"] = rng.choice([0.01, -0.5, 2.0, 1.0])
        if rng.random() < 0.7:
            printed["add_offset"] = rng.choice([273.15, -100.0, 0.0])
    if kind[0] == "i" and rng.random() < 0.15:
        printed["_Unsigned"] = "true"
    if rng.random() < 0.08:
        floats = [("missing_value", 1e300), ("missing_value", 0.3)] if kind != "f8" else []
        ends = [("valid_range", np.array([0.5, 7.5]))] if kind[0] != "f" and "scale_factor" in printed else []
        doubtful, value = rng.choice([*floats, *ends, ("missing_value", "-9999"), ("valid_range", np.array([1], kind)), ("valid_min", "0"), ("scale_factor", "0.5")])
        printed[doubtful] = value
    return fill, printed, doubtful


def missing(raw, fill, printed, defaults=None):
    """Returns the mask of missing values by the conventions, exactly; `raw` already has the sign of the reader."""
    mask = np.isnan(raw) if raw.dtype.kind == "f" else np.zeros(raw.shape, bool)
    view = lambda value: np.asarray(value, raw.dtype if raw.dtype.kind == "f" else None)
    def typed(value):
        if raw.dtype.kind == "f" or np.asarray(value).dtype.kind == raw.dtype.kind:
            return view(value).astype(raw.dtype)
        same = np.asarray(value).dtype.itemsize == raw.dtype.itemsize
        return np.asarray(value).view(raw.dtype) if same else raw.dtype.type(int(value))

    for value in ([] if fill is None else [fill]) + list(np.ravel(printed.get("missing_value", []))):
        mask |= raw == typed(value)
    if fill is None and defaults is not None:
        mask |= raw == defaults
    low, high = printed.get("valid_range", (printed.get("valid_min"), printed.get("valid_max")))
    with np.errstate(invalid="ignore"):
        mask |= (raw < typed(low)) if low is not None else False
        mask |= (raw > typed(high)) if high is not None else False
    return mask


def pieces(rng, shape):
    """Returns parts of an array to write; the other parts keep the fill value."""
    if rng.random() < 0.75:
        return [tuple(slice(None) for _ in shape)]
    size = shape[0]
    start = rng.randrange(size)
    return [(slice(start, rng.randint(start + 1, size)), *(slice(None) for _ in shape[1:]))]


def of_netcdf(rng, directory, number):
    form = rng.choice(["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4", "NETCDF4", "NETCDF4_CLASSIC"])
    kind = rng.choice(CLASSIC if form in ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF4_CLASSIC"] else TYPES)
    names, shape, time, latitude = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, printed, doubtful = attributes(rng, kind, raw)
    path = directory / f"{number}.nc"
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
        variable.setncatts(printed)
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
    if printed.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    default = netCDF4.default_fillvals[kind] if kind not in ["i1", "u1"] else None
    if default is not None:
        default = np.array(default, kind)
        default = default.view(raw.dtype) if raw.dtype.kind == "u" else default
    case = Case(path, names, raw, None if doubtful else missing(raw, fill, printed, default), printed.get("scale_factor"), printed.get("add_offset"), doubtful, time, latitude)
    case.about = [form, kind, fill, printed]
    # Compares with the library, except for its default fill values of one byte, which violate the conventions.
    if not doubtful and "_Unsigned" not in printed and (fill is not None or kind not in ["i1", "u1"]):
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


def of_h5py(rng, directory, number):
    kind = rng.choice(TYPES)
    names, shape, _, _ = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, printed, doubtful = attributes(rng, kind, raw)
    path = directory / f"{number}.h5"
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
        for name, value in printed.items():
            data.attrs[name] = value
    with h5py.File(path) as file:
        raw = file["x"][:]
    raw = raw.astype(raw.dtype.newbyteorder("="))
    if printed.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    case = Case(path, [f"dim_{place}" for place in range(len(shape))], raw, None if doubtful else missing(raw, fill, printed), printed.get("scale_factor"), printed.get("add_offset"), doubtful)
    case.about = ["h5py", kind, fill, printed, more]
    return case


def of_zarr(rng, directory, number):
    version, kind = rng.choice([2, 3]), rng.choice(TYPES)
    names, shape, _, _ = layout(rng)
    raw = numbers(rng, kind, shape)
    fill, printed, doubtful = attributes(rng, kind, raw)
    if doubtful == "missing_value" and kind == "f4" and printed[doubtful] == 0.3:
        # JSON has no types: decimal numbers take the type of the variable.
        doubtful = None
    path = directory / f"{number}.zarr"
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
    array.attrs.update({name: value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for name, value in printed.items()})
    if version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = names
    if printed.get("_Unsigned"):
        raw = raw.view(f"u{raw.dtype.itemsize}")
    masked = fill if version == 2 else None
    if version == 2 and masked is None:
        assert array.fill_value is None, array.fill_value
    case = Case(path, names, raw, None if doubtful else missing(raw, masked, printed), printed.get("scale_factor"), printed.get("add_offset"), doubtful)
    case.about = [f"zarr {version}", kind, fill, printed, {name: str(value) for name, value in more.items()}]
    return case


def of_xarray(rng, directory, number):
    """Writes with xarray. The missing values are those that xarray finds when it reads the file."""
    engine = rng.choice(["netcdf4", "h5netcdf", "scipy", "zarr2", "zarr3"])
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
    if engine == "scipy" and encoding.get("dtype") == "u1":
        # Classic files have signed bytes: xarray writes them with _Unsigned.
        encoding.update({"dtype": "i1", "_FillValue": -1, "_Unsigned": "true"})
    dataset.x.encoding.update(encoding)
    path = directory / f"{number}.{'zarr' if engine[:4] == 'zarr' else 'nc'}"
    opened = {"mask_and_scale": True}
    if engine[:4] != "zarr":
        dataset.to_netcdf(path, engine=engine)
        opened["engine"] = engine
    else:
        dataset.to_zarr(path, mode="w", zarr_format=int(engine[-1]), consolidated=rng.random() < 0.5)
        opened["engine"] = "zarr"
    with xr.open_dataset(path, **opened) as file:
        mask = np.isnan(file.x.values)
    with xr.open_dataset(path, **{**opened, "mask_and_scale": False}) as file:
        raw, printed = file.x.values, file.x.attrs
    raw = raw.astype(raw.dtype.newbyteorder("="))
    if printed.get("_Unsigned") == "true":
        raw = raw.view(f"u{raw.dtype.itemsize}")
    case = Case(path, names, raw, mask, printed.get("scale_factor"), printed.get("add_offset"))
    case.about = [engine, str(raw.dtype), encoding, printed]
    return case


def of_fits(rng, directory, number):
    """Writes with astropy: BLANK for integers, BZERO for unsigned integers, NaN for floats."""
    kind = rng.choice(["u1", "i2", "i4", "i8", "f4", "f8"])
    shape = tuple(rng.randint(1, 7) for _ in range(rng.choice([1, 2, 3])))
    raw = numbers(rng, kind, shape)
    header = fits.Header()
    if rng.random() < 0.3:
        header["BSCALE"], header["BZERO"] = rng.choice([(0.5, 10.0), (2.0, 0.0), (1.0, 32768.0), (-1.0, 0.25)])
    blank = int(rng.choice(raw.ravel().tolist())) if kind[0] != "f" and rng.random() < 0.6 else None
    if blank is not None:
        header["BLANK"] = blank
    path = directory / f"{number}.fits"
    hdu = fits.PrimaryHDU(raw, header=header, do_not_scale_image_data=True)
    # astropy removes these keys from the header when it makes the data.
    for name in ["BSCALE", "BZERO", "BLANK"]:
        if name in header:
            hdu.header[name] = header[name]
    hdu.writeto(path, output_verify="ignore")
    with fits.open(path, do_not_scale_image_data=True) as file:
        raw, printed = np.array(file[0].data), file[0].header
        raw = raw.astype(raw.dtype.newbyteorder("="))
        scale, offset, blank = printed.get("BSCALE"), printed.get("BZERO"), printed.get("BLANK")
    mask = np.isnan(raw) if kind[0] == "f" else raw == blank if blank is not None else np.zeros(raw.shape, bool)
    names = [f"axis_{place}" for place in range(len(shape), 0, -1)]
    case = Case(path, names, raw, mask, scale, offset)
    case.about, case.variable, case.writer = ["astropy", kind, printed.get("BLANK"), scale, offset], "0", "astropy"
    return case


def of_members(rng, directory, number):
    """Makes files of one grid, each a member of an ensemble."""
    shape, kind = (rng.randint(1, 9), rng.randint(1, 5)), rng.choice(TYPES)
    count, calendar = rng.randint(2, 4), rng.choice(CALENDARS)
    raw = np.stack([numbers(rng, kind, shape) for _ in range(count)])
    fill = np.dtype(kind).type(rng.choice(raw.ravel().tolist()))
    hours, since = np.arange(shape[0]) * rng.choice([1.0, 6.0, 24.0, 240.0]), "hours since 1999-12-30"
    latitude = np.linspace(-75, 75, shape[1])
    scale = rng.choice([None, None, 0.5]) if kind[0] != "f" else None
    for member in range(count):
        with netCDF4.Dataset(directory / f"{member}.nc", "w", format=rng.choice(["NETCDF4", "NETCDF3_64BIT_DATA"])) as file:
            for name, size in zip(["time", "lat"], shape):
                file.createDimension(name, rng.choice([None, size]) if name == "time" else size)
            time = file.createVariable("time", "f8", ("time",))
            time.setncatts({"units": since, "calendar": calendar})
            time[:] = hours
            file.createVariable("lat", "f8", ("lat",))[:] = latitude
            variable = file.createVariable("x", kind, ("time", "lat"), fill_value=fill)
            variable.set_auto_maskandscale(False)
            if scale:
                variable.scale_factor = scale
            variable[:] = raw[member]
    case = Case(directory / "*.nc", ["member", "time", "lat"], raw, missing(raw, fill, {}), scale, None, None, (hours, since, calendar), latitude)
    case.about, case.writer, case.members = [kind, fill, scale, count], "ensembles", True
    return case


TOOLS = [name for name in ["ncks", "cdo", "gdal_translate"] if shutil.which(name)]


def of_tool(rng, directory, number):
    """Converts a file of netCDF4 with NCO, CDO or GDAL; the raw values and attributes are those that netCDF4 then reads."""
    tool = rng.choice(TOOLS)
    floats = rng.random() < 0.6
    kind = rng.choice(["f4", "f8"] if floats else ["i1", "i2", "i4"])
    shape = (rng.randint(1, 9), rng.randint(2, 6), rng.randint(2, 6))
    names = ["time", "lat", "lon"]
    values = np.array([rng.gauss(280, 30) if floats else rng.randint(-99, 99) for _ in range(math.prod(shape))], kind).reshape(shape)
    fill = np.dtype(kind).type(rng.choice([-9999, 1e20] if floats else [-100, 0, 99]))
    values[np.array([rng.random() < 0.15 for _ in range(values.size)]).reshape(shape)] = fill
    source, path = directory / f"{number}.source.nc", directory / f"{number}.nc"
    hours, since, calendar = np.arange(shape[0]) * rng.choice([1, 6, 24]), "hours since 1999-12-30", rng.choice(["standard", "proleptic_gregorian", "noleap", "360_day"])
    latitude = np.linspace(*rng.choice([(-60, 60), (75, -75)]), shape[1])
    with netCDF4.Dataset(source, "w", format=rng.choice(["NETCDF4", "NETCDF4_CLASSIC", "NETCDF3_64BIT_OFFSET"])) as file:
        file.createDimension("time", None)
        file.createDimension("lat", shape[1])
        file.createDimension("lon", shape[2])
        time = file.createVariable("time", "f8", ("time",))
        time.setncatts({"units": since, "calendar": calendar, "standard_name": "time", "axis": "T"})
        time[:] = hours
        for name, own in [("lat", latitude), ("lon", np.arange(shape[2]) * 10.0)]:
            variable = file.createVariable(name, "f8", (name,))
            variable.setncatts({"units": {"lat": "degrees_north", "lon": "degrees_east"}[name], "standard_name": {"lat": "latitude", "lon": "longitude"}[name]})
            variable[:] = own
        variable = file.createVariable("x", kind, tuple(names), fill_value=fill)
        variable.set_auto_maskandscale(False)
        if rng.random() < 0.3:
            variable.missing_value = fill
        variable[:] = values
    name = "x"
    if tool == "ncks":
        command = rng.choice([
            ["ncks", "-O", rng.choice(["-3", "-4", "-5", "-6", "-7"])], ["ncks", "-O", "-4", "-L", str(rng.randint(1, 9)), "--cnk_plc", rng.choice(["all", "g2d", "g3d"])],
            ["ncpdq", "-O", "-P", rng.choice(["all_new", "all_xst", "xst_new"])], ["ncpdq", "-O", "-M", rng.choice(["flt_sht", "flt_byt", "dbl_flt"]), "-P", "all_new"], ["ncpdq", "-O", "-4", "-L", "1", "-a", "lat,lon,time"],
            ["ncpdq", "-O", "-a", "-lat"], ["ncks", "-O", "-4", "--fix_rec_dmn", "time"], ["ncap2", "-O", "-s", "x=x+1"], ["ncks", "-O", "-d", "lat,0,1"],
        ])
        command += [str(source), str(path)]
    elif tool == "cdo":
        form = rng.choice(["nc1", "nc2", "nc4", "nc4c", "nc5"])
        bits = rng.choice(["I8", "I16", "I32", "F32", "F64", None, "U8", "U16"] if form in ["nc4", "nc5"] else ["I8", "I16", "I32", "F32", "F64", None])
        command = ["cdo", "-s", "-f", form, *(["-b", bits] if bits else []), *(["-z", f"zip_{rng.randint(1, 9)}"] if form in ["nc4", "nc4c"] and rng.random() < 0.5 else [])]
        command += [*rng.choice([["copy"], ["setmissval,-5"], ["invertlat"], ["mulc,2"], ["setmissval,nan"], ["sellonlatbox,5,40,-90,90"], ["setrtomiss,0,50"]]), str(source), str(path)]
    else:
        names = ["lat", "lon"]
        kinds = ["Byte", "UInt16", "Int16", "UInt32", "Int32", "Float32", "Float64"]
        form = rng.choice(["NC", "NC2", "NC4", "NC4C"])
        command = ["gdal_translate", "-q", "-of", "netCDF", "-b", str(rng.randint(1, shape[0])), "-co", f"FORMAT={form}", "-ot", rng.choice(kinds)]
        command += ["-co", "COMPRESS=DEFLATE"] if form == "NC4" and rng.random() < 0.5 else []
        command += rng.choice([[], ["-a_nodata", str(rng.choice([0, 7, 255]))], ["-a_nodata", "none"], ["-scale", "-99", "400", "0", "250"], ["-a_scale", "0.5", "-a_offset", "10"]])
        command += [f"NETCDF:{source}:x", str(path)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode or not path.exists():
        return None
    with netCDF4.Dataset(path) as file:
        variable = file.variables.get(name)
        if variable is None or 0 in variable.shape:
            return None
        variable.set_auto_maskandscale(False)
        raw, printed, names = variable[:], dict(variable.__dict__), list(variable.dimensions)
        kind, form = variable.dtype.str[1:], file.data_model
        never = form.startswith("NETCDF3") or "_FillValue" in printed or netCDF4.default_fillvals.get(kind) is not None
        times = (file["time"][:].data, file["time"].units, getattr(file["time"], "calendar", "standard")) if "time" in names and file["time"].dtype.kind == "f" and not hasattr(file["time"], "scale_factor") else None
        latitude = file["lat"][:].data if "lat" in names and "lat" in file.variables and not hasattr(file["lat"], "scale_factor") else None
    raw = raw.astype(raw.dtype.newbyteorder("="))
    default = np.array(netCDF4.default_fillvals[kind], kind) if never and kind not in ["i1", "u1"] else None
    if str(printed.get("_Unsigned", "")).lower() == "true":
        raw = raw.view(f"u{raw.dtype.itemsize}")
        default = default.view(raw.dtype) if default is not None else None
    whole = raw.dtype.kind in "iu"
    ends = [np.asarray(printed[one]).dtype.kind for one in ["valid_range", "valid_min", "valid_max"] if one in printed]
    packed = "scale_factor" in printed or "add_offset" in printed
    doubtful = "valid_" if whole and packed and "f" in ends else None
    bits = 8 * raw.dtype.itemsize

    def has(value):
        if whole:
            return float(value).is_integer() and -(2 ** (bits - 1)) <= int(value) < (2**bits if raw.dtype.kind == "u" else 2 ** (bits - 1))
        return math.isnan(value) or float(raw.dtype.type(value)) == float(value) or raw.dtype.type(value) == printed.get("_FillValue")

    doubtful = next((one for one in ["_FillValue", "missing_value"] for value in np.ravel(printed.get(one, [])) if not has(value)), doubtful)
    with np.errstate(invalid="ignore", over="ignore"):
        mask = None if doubtful else missing(raw, printed.get("_FillValue"), printed, default)
    number_of = lambda one: None if one is None else float(one)
    case = Case(path, names, raw, mask, number_of(printed.get("scale_factor")), number_of(printed.get("add_offset")), doubtful, times, latitude)
    case.about, case.variable, case.writer = [command, kind, {key: str(value) for key, value in printed.items()}], name, {"ncks": "NCO", "cdo": "CDO", "gdal_translate": "GDAL"}[tool]
    if not doubtful and not ends and default is None:
        with xr.open_dataset(path, decode_times=False, decode_coords=False) as file:
            assert (np.isnan(file[name].values.astype("f8")) == mask).all(), ("the model is not xarray's", case.about)
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
    """Returns the expected results for a list of stored values."""
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
        if names[axis] == "member":
            continue
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
    over = sorted({*rng.sample(range(len(shape)), rng.randint(1, len(shape))), *([0] if case.members else [])})
    command = [BINARY, "--json", "reduce", operation, f"{case.path}:{case.variable}", "--local", "--over", ",".join(names[axis] for axis in over)]
    command += ["--where", ",".join(where)] if where else []
    command += ["--ensemble"] if case.members else []
    weighs = None
    if operation in ["sum", "mean"] and case.latitude is not None and rng.random() < 0.4:
        command += ["--weights", "lat"]
        weighs = names.index("lat")
    by = None
    if case.time is not None and rng.random() < 0.5:
        by = rng.choice(list(KEYS))
        command += ["--by", by]
    printed = subprocess.run(command, capture_output=True, text=True)
    if case.doubtful:
        assert printed.returncode and case.doubtful in printed.stderr and case.path.name in printed.stderr and " x" in printed.stderr, ("not refused by name", command, case.about, printed.stdout, printed.stderr)
        return False
    assert printed.returncode == 0, ("refused", command, case.about, printed.stderr)
    found = json.loads(printed.stdout)["values"]
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
            weight = 1.0 if weighs is None else math.cos(math.radians(case.latitude[indices[weighs][index[weighs]]]))
            cells[cell].append(raw[index] if weighs is None else (raw[index], weight))
    whole = case.raw.dtype.kind in "iu" and not case.packed
    for what in ["count", "min", "max", "sum", "mean", "stddev"] if operation == "stats" else [operation]:
        ours = found[what] if isinstance(found[what], list) else [found[what]]
        assert len(ours) == len(cells), (command, case.about, len(ours), len(cells))
        exact = what == "count" or whole and what in ["min", "max", "sum", "range"]
        for mine, values in zip(ours, cells):
            if weighs is not None:
                pairs, values, exact = values, [value for value, _ in values], False
                meant = [float(value) * (case.scale or 1.0) + (case.offset or 0.0) for value in values]
                total, weight = math.fsum(one * own for one, (_, own) in zip(meant, pairs)), math.fsum(own for _, own in pairs)
                theirs = total if what == "sum" else total / weight if values else None
            else:
                theirs = answers(case, what, values)
            largest = max([abs(float(value)) for value in values], default=0) * abs(case.scale or 1) + abs(case.offset or 0)
            assert alike(mine, theirs, exact, largest * max(1, len(values)) ** 0.5), (command, case.about, what, mine, theirs)
    return True


# --- several files as one, selections by value, and times ---------------------------------------------------------------------

STEPS = {"year": 1, "month": 2, "day": 3, "hour": 4}


class Series:
    """Files of one variable `x` along time: the whole series, or the reason why the files are no series."""

    def __init__(self):
        self.refused, self.about = None, []


def decimals(rng, name):
    """Returns a coordinate as people write it (decimal texts), and its stored values."""
    if name == "lon" and rng.random() < 0.6:
        count = rng.choice([4, 6, 8, 9, 12])
        first = rng.choice([Decimal(0), Decimal(-180), Decimal(180) / count])
        values = [first + Decimal(360) / count * place for place in range(count)]
        if rng.random() < 0.1:
            values.append(values[0] + 360)
    else:
        step = Decimal(rng.choice(["0.1", "0.25", "1", "2.5", "10"]))
        first = step * rng.randint(-8, 8) + (Decimal("350") if name == "lon" and rng.random() < 0.3 else 0)
        values = [first + step * place for place in range(rng.randint(2, 8))]
    if rng.random() < 0.4:
        values.reverse()
    if rng.random() < 0.08:
        rng.shuffle(values)
    return values, rng.choice(["f4", "f8"])


def of_series(rng, directory, number):
    case = Series()
    others = rng.choice([["lat"], ["lon"], ["lat", "lon"], ["level", "lon"], ["lat", "lon"]])
    case.names = ["time", *others]
    grid = {name: decimals(rng, name) for name in others}
    calendar = rng.choice(CALENDARS)
    base, hours = rng.choice(["1999-12-27", "2000-02-20", "1850-01-01", "1999-01-01"]), rng.choice([6, 24, 24, 24 * 10])
    count = rng.randint(2, 24)
    stamps = np.arange(count) * hours
    if rng.random() < 0.3:
        # The times have gaps.
        stamps = np.sort(np.array(rng.sample(range(2 * count), count))) * hours
    cuts = sorted(rng.sample(range(1, count), min(count - 1, rng.randint(0, 3))))
    parts = np.split(np.arange(count), cuts)
    wrong = rng.choice([None] * 8 + ["reversed", "permuted", "shifted", "nearly", "single", "turned", "calendar", "units", "twice", "between", "lacking", "type", "packed", "packs", "empty", "nan", "other", "override", "inner", "inner"])
    if len(parts) == 1 and wrong not in ["nan", "packed", "packs", "empty"]:
        wrong = None
    if wrong == "between":
        # The files take the steps in turn.
        parts = [np.arange(count)[place::len(parts)] for place in range(len(parts))]
    case.dates = cftime.num2date(stamps, f"hours since {base}", calendar)
    shape = (count, *(len(grid[name][0]) for name in others))
    kind = rng.choice(["f4", "f4", "f8", "i2", "i4", "i1", "u1", "u2", "u4", "i8", "u8"])
    far = rng.choice([0, 0, 2**53, 2**62]) if kind in ["i8", "u8"] and wrong not in ["type", "packed", "packs"] else 0
    least = 0 if kind[0] == "u" else -99
    raw = np.array([rng.gauss(280, 30) if kind[0] == "f" else far + rng.randint(least, 99) for _ in range(math.prod(shape))], kind).reshape(shape)
    # All files have this bound on stored values.
    floor = rng.choice([None, None, None, 20]) if wrong != "type" else None
    universe, subsets = {name: list(grid[name][0]) for name in others}, []
    halved = rng.choice(others)
    mask = np.array([rng.random() < 0.1 for _ in range(raw.size)]).reshape(shape)
    case.kind, case.mask, case.values = kind, mask, np.empty(shape, object)
    hurt = rng.randrange(len(parts)) if wrong in ["nan", "packed"] else rng.randrange(1, len(parts)) if len(parts) > 1 else 0
    bounded = rng.random() < 0.3
    case.stamped = rng.choice(["start", "middle", "end"]) if bounded else None
    case.bounds = None
    at = {"start": 0, "middle": 0.5, "end": 1, None: 0}[case.stamped]
    starts = stamps
    case.starts = cftime.num2date(starts, f"hours since {base}", calendar)
    case.ends = cftime.num2date(starts + hours, f"hours since {base}", calendar)
    case.dates = cftime.num2date(starts + hours * at, f"hours since {base}", calendar)
    if not bounded:
        case.starts = case.ends = None
    missing_times = np.zeros(count, bool)
    labels = rng.sample("abcdefgh", len(parts))
    case.files = []
    for place, part in enumerate(parts):
        mine = wrong if place == hurt else None
        unit, of = rng.choice([("days", 24), ("hours", 1), ("minutes", 1 / 60), ("seconds", 1 / 3600), ("days", 24)])
        since = rng.choice([base, "1850-01-01", "2000-01-01 12:00:00"])
        own = calendar
        if mine == "calendar":
            own = rng.choice([one for one in ["noleap", "360_day", "julian", "all_leap"] if one != calendar])
            case.refused = ["coordinate time", "calendar"]
        elif calendar == "standard" and rng.random() < 0.5:
            # After 1582 these calendars are the same, and gregorian is another name of standard.
            own = rng.choice(["gregorian", "proleptic_gregorian"])
        # Converts times exactly to numbers in the units of this file.
        offset = cftime.date2num(cftime.num2date(0, f"hours since {base}", calendar), f"hours since {since}", calendar)
        number_of = lambda hour: float(Fraction(hour + offset) / Fraction(of).limit_denominator(3600))
        times = np.array([number_of(int(starts[index]) + Fraction(at) * hours) for index in part])
        edges = np.array([[number_of(int(starts[index])), number_of(int(starts[index]) + hours)] for index in part])
        values = raw[part].copy()
        gone = mask[part]
        coordinates = {name: [list(grid[name][0]), grid[name][1]] for name in others}
        which = halved if wrong == "inner" else rng.choice(others)
        texts, stored = coordinates[which]
        if wrong == "inner":
            own_places = [one for one in range(len(texts)) if rng.random() < 0.8] or [rng.randrange(len(texts))]
            if rng.random() < 0.3:
                own_places.reverse()
            coordinates[which][0] = [texts[one] for one in own_places]
            subsets.append((labels[place], own_places))
            axis = 1 + others.index(which)
            values, gone = np.take(values, own_places, axis), np.take(gone, own_places, axis)
        shift = np.zeros(len(texts))
        if mine == "reversed":
            texts.reverse()
            case.refused = None if texts == grid[which][0] else [f"coordinate {which}", "other way around"]
        elif mine == "permuted":
            rng.shuffle(texts)
            case.refused = None if texts == grid[which][0] else [f"coordinate {which}"]
        elif mine == "shifted":
            coordinates[which][0] = [text + Decimal("0.05") for text in texts]
            case.refused = [f"coordinate {which}", "index 0 is"]
        elif mine == "override":
            coordinates[which][0] = [text + Decimal("0.05") for text in texts]
        elif mine == "single":
            coordinates[which][1] = "f4" if stored == "f8" else "f8"
        elif mine == "turned":
            if which == "lon":
                coordinates[which][0] = [text - 360 if text >= 180 else text + 360 for text in texts]
                case.refused = ["coordinate lon"]
        elif mine == "twice" and place > 0:
            times[0], edges[0] = None, None
            hour = int(starts[parts[place - 1][-1]])
            times[0] = number_of(hour + Fraction(at) * hours)
            case.refused = ["coordinate time", "both have"]
        elif mine == "nan":
            times[rng.randrange(len(part))] = np.nan
        name = f"{labels[place]}.nc"
        path = directory / name
        form = rng.choice(["NETCDF4", "NETCDF3_64BIT_OFFSET"] if kind in CLASSIC else ["NETCDF4", "NETCDF3_64BIT_DATA"])
        packing = None
        with netCDF4.Dataset(path, "w", format=form) as file:
            file.createDimension("time", None)
            integral = all(float(one).is_integer() and abs(one) < 2**31 for one in times)
            variable = file.createVariable("time", "i4" if integral and rng.random() < 0.3 else "f8", ("time",), fill_value=np.nan if mine == "nan" else None)
            variable.setncatts({"units": f"{unit} since {since}", "calendar": own})
            if bounded:
                file.createDimension("two", 2)
                variable.bounds = "time_bnds"
                file.createVariable("time_bnds", "f8", ("time", "two"))[:] = edges
            variable[:] = times
            for one in others:
                texts, stored = coordinates[one]
                file.createDimension(one, len(texts))
                if mine == "lacking" and one == which:
                    case.refused = [f"coordinate {one}", "has none"]
                    continue
                variable = file.createVariable(one, stored, (one,))
                numbers_of = np.array([float(text) for text in texts])
                if mine == "nearly" and one == which:
                    numbers_of = np.nextafter(numbers_of, np.inf) if stored == "f8" else numbers_of
                variable[:] = numbers_of
                if one == "lat":
                    variable.units = rng.choice(["degrees_north", "degree_north", "degrees_N"])
                elif one == "lon":
                    variable.units = rng.choice(["degrees_east", "degree_east", "degrees_E"])
                else:
                    variable.units = "m"
            own_kind = rng.choice(["f4", "f8", "i2", "i4"]) if mine == "type" else kind
            if own_kind[0] != kind[0]:
                values = np.array([rng.gauss(0, 9) if own_kind[0] == "f" else rng.randint(-99, 99) for _ in range(values.size)], own_kind).reshape(values.shape)
            values = values.astype(own_kind)
            fill = {"i1": -128, "u1": 255, "u2": 65535, "u4": 2**32 - 1, "u8": 2**64 - 1}.get(own_kind, -9999)
            variable = file.createVariable("y" if mine == "other" else "x", own_kind, tuple(case.names), fill_value=fill)
            variable.set_auto_maskandscale(False)
            variable.units = "degC" if mine == "units" else "K"
            if mine == "units":
                case.refused = ["the units of x"]
            if floor is not None:
                variable.valid_min = values.dtype.type(floor)
                gone = gone | (values < floor)
                mask[part] = gone if wrong != "inner" else mask[part] | (raw[part] < floor)
            if (mine == "packed" or wrong == "packs") and own_kind[0] in "iu":
                packing = (rng.choice([0.5, 0.01, -2.0]), rng.choice([0.0, 100.0]))
                variable.scale_factor, variable.add_offset = packing
            variable[:] = np.where(gone, values.dtype.type(fill), values)
        if mine == "nan":
            missing_times[part[np.isnan(times)]] = True
        case.files.append(path)
        if mine == "other":
            missing_times[part] = True
        if wrong == "inner":
            values = raw[part]
        scaled = np.empty(values.shape, object)
        for index in np.ndindex(*values.shape):
            one = values[index].item()
            scaled[index] = one if packing is None else one * packing[0] + packing[1]
        case.values[part] = scaled
        case.about.append((name, form, f"{unit} since {since}", own, own_kind, mine, packing, part.tolist()))
    if wrong == "empty":
        with netCDF4.Dataset(directory / "z.nc", "w") as file:
            source = netCDF4.Dataset(case.files[0])
            for name, dimension in source.dimensions.items():
                file.createDimension(name, None if dimension.isunlimited() else len(dimension))
            for name, variable in source.variables.items():
                made = file.createVariable(name, variable.dtype, variable.dimensions, fill_value=getattr(variable, "_FillValue", None))
                made.setncatts({key: value for key, value in variable.__dict__.items() if key != "_FillValue"})
                if "time" not in variable.dimensions:
                    made[:] = variable[:]
            source.close()
    if wrong == "other" and len(parts) > 1:
        keep = ~missing_times
        case.values, case.mask, case.dates = case.values[keep], case.mask[keep], case.dates[keep]
        if case.starts is not None:
            case.starts, case.ends = case.starts[keep], case.ends[keep]
        missing_times = missing_times[keep]
    if wrong == "inner":
        # The order is that of the first file by name.
        common = [one for one in min(subsets)[1] if all(one in own for _, own in subsets)]
        if not common:
            case.refused = [f"coordinate {halved}", "no value is in all files"]
        axis = 1 + others.index(halved)
        case.values, case.mask = np.take(case.values, common, axis), np.take(case.mask, common, axis)
        grid[halved] = ([universe[halved][one] for one in common], grid[halved][1])
    case.missing_times, case.grid, case.wrong, case.between = missing_times, grid, wrong, wrong == "between" and count > len(parts)
    case.unplaced = wrong == "nan" and len(parts) > 1 and any(missing_times[part].all() for part in parts)
    case.hours = hours
    case.whole = all(one[4][0] == "i" and one[6] is None for one in case.about if one[5] != "other")
    case.path = f"{directory}/*.nc"
    # Cases without odd properties are also compared with xarray.
    if (wrong is None or wrong == "inner" and not case.refused) and len(parts) > 1 and floor is None and far == 0:
        opened = [xr.open_dataset(path, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) for path in case.files]
        whole = xr.concat(opened, "time", join="inner" if wrong else "exact", data_vars="all", coords="minimal", compat="override")
        if wrong:
            first = opened[labels.index(min(labels))][halved].values
            assert set(whole[halved].values) == {one for one in first if one in whole[halved].values} and whole.sizes[halved] == len(common), ("the model is not xarray's", case.about)
            whole = whole.sel({halved: [one for one in first if one in whole[halved].values]})
        theirs = np.where(case.mask, np.nan, case.values.astype("f8"))
        assert np.array_equal(whole.x.values.astype("f8"), theirs, equal_nan=True), "the model is not xarray's"
        assert [str(one) for one in whole.time.values] == [str(one) for one in case.dates], ("the times of the model", case.about)
        for one in opened:
            one.close()
    return case


def around(texts, low, high):
    """Selects a range of longitudes: returns indices in the order of the result with their longitudes, or the reason of a refusal."""
    found = {}
    for index, value in enumerate(texts):
        if low <= value <= high:
            found[index] = value
            continue
        turned = value + 360 * math.ceil((low - value) / 360)
        if turned <= high:
            found[index] = turned
    if all(found[index] == texts[index] for index in found):
        return straight(texts, found)
    # Runs of neighbours are sorted by longitude, in the direction of the coordinate.
    runs = []
    for index in sorted(found):
        if runs and runs[-1][-1] == index - 1 and found[index] - texts[index] == found[index - 1] - texts[index - 1]:
            runs[-1].append(index)
        else:
            runs.append([index])
    down = next((found[run[0]] > found[run[-1]] for run in runs if found[run[0]] != found[run[-1]]), False)
    runs.sort(key=lambda run: found[run[0]], reverse=down)
    order = [index for run in runs for index in run]
    values = [found[index] for index in order]
    if any(one == other or (one < other) == down for one, other in zip(values, values[1:])):
        return None, "one longitude"
    return order, values


def straight(texts, found):
    order = sorted(found)
    if any(other != one + 1 for one, other in zip(order, order[1:])):
        return None, "not contiguous"
    return order, [found[index] for index in order]


def parts_of(date, many):
    return (date.year, date.month, date.day, date.hour)[:many]


def written(parts):
    text = "-".join(f"{one:04}" if place == 0 else f"{one:02}" for place, one in enumerate(parts[:3]))
    return text + (f"T{parts[3]:02}:00" if len(parts) > 3 else "")


def moments(case, at, group):
    """Returns a date for each time step, and the indices of misleading time stamps."""
    dates = list(case.dates)
    if at == "end":
        return [date - datetime.timedelta(milliseconds=1) for date in dates], []
    if at == "bounds" and case.starts is not None:
        return [start + (end - start) / 2 for start, end in zip(case.starts, case.ends)], []
    mislead = []
    if at is None and case.starts is not None:
        for index, (date, start, end) in enumerate(zip(dates, case.starts, case.ends)):
            if case.missing_times[index]:
                continue
            last = end - datetime.timedelta(milliseconds=1)
            if group(start) == group(last) != group(date):
                mislead.append(index)
    return dates, mislead


def one_of_series(rng, case):
    names = case.names
    indices = [list(range(size)) for size in case.values.shape]
    shown, where, refused, perhaps = {name: None for name in names}, [], [], False
    at = rng.choice([None, None, "start", "middle", "end", "bounds"])
    if at is None and rng.random() < 0.5 and case.stamped:
        at = case.stamped
    more, by_index = [], False
    if at:
        more += ["--time-at", at]
    for axis, name in enumerate(names):
        if rng.random() < 0.45:
            continue
        if name != "time" and rng.random() < 0.15 and indices[axis]:
            size, texts = len(indices[axis]), case.grid[name][0]
            start = rng.randrange(size)
            end, step = rng.randint(start + 1, size), rng.randint(1, 2)
            where.append(f"{name}=[{start}:{end}:{step}]")
            indices[axis], shown[name] = list(range(start, end, step)), texts[start:end:step]
        elif name != "time":
            texts = case.grid[name][0]
            if not texts:
                continue
            low, high = rng.choice(texts), rng.choice(texts)
            if rng.random() < 0.3:
                low, high = low + Decimal("0.01"), high - Decimal("0.01")
            if name != "lon":
                low, high = min(low, high), max(low, high)
                if rng.random() < 0.2:
                    low = rng.choice([low - 1000, low - 1])
            elif rng.random() < 0.5:
                low, high = rng.choice([(-20, 20), (350, 10), (-180, 180), (0, 360), (-10, 10), (170, 190), (-90, 0), (300, 30), (359, 1)])
                low, high = Decimal(low), Decimal(high)
            where.append(f"{name}={low}{rng.choice([':', '..'])}{high}")
            if name == "lon":
                if low > high:
                    high += 360 * math.ceil((low - high) / 360)
                order, values = around(texts, low, high)
            else:
                order, values = straight(texts, {index: text for index, text in enumerate(texts) if low <= text <= high})
            if order is None:
                refused.append([f"dimension {name}", values])
                continue
            if not order:
                refused.append([f"dimension {name}", "nothing"])
                continue
            step = rng.choice([1, 1, 1, 2])
            if step > 1:
                where[-1] += f"::{step}"
            indices[axis], shown[name] = order[::step], values[::step]
        elif rng.random() < 0.7:
            many = [rng.randint(1, 4), rng.randint(1, 4)]
            ends = sorted(rng.choice(list(case.dates)) for _ in range(2))
            low, high = parts_of(ends[0], many[0]), parts_of(ends[1], many[1])
            if low[:len(high)] > high[:len(low)]:
                continue
            if rng.random() < 0.1:
                low, high = (2200,), (2300,)
            where.append(f"time={written(low)}..{written(high)}")
            group = lambda date: parts_of(date, len(low)) >= low and parts_of(date, len(high)) <= high
            dates, mislead = moments(case, at, group)
            chosen = [index for index, date in enumerate(dates) if not case.missing_times[index] and group(date)]
            if at == "bounds" and case.starts is None:
                refused.append(["dimension time", "no bounds"])
            elif mislead:
                refused.append(["dimension time", "--time-at"])
            elif not chosen:
                refused.append(["dimension time", "nothing"])
            indices[axis] = chosen
        else:
            start = rng.randrange(len(case.dates))
            end, step = rng.randint(start + 1, len(case.dates)), rng.randint(1, 3)
            where.append(f"time=[{start}:{end}:{step}]")
            indices[axis] = list(range(start, end, step))
            by_index = True
    rng.shuffle(where)
    operation = rng.choice(OPERATIONS)
    over = sorted(rng.sample(range(len(names)), rng.randint(1, len(names))))
    command = [BINARY, "--json", "reduce", operation, f"{case.path}:x", "--local", "--over", ",".join(names[axis] for axis in over), *more]
    command += ["--where", ",".join(where)] if where else []
    if case.wrong in ["override", "inner"]:
        command += ["--join", case.wrong]
    by = rng.choice(list(KEYS)) if rng.random() < 0.45 else None
    keys = list(range(len(case.dates)))
    if by:
        command += ["--by", by]
        dates, mislead = moments(case, at, KEYS[by])
        if at == "bounds" and case.starts is None:
            refused.append(["dimension time", "no bounds"])
        elif mislead:
            sure = [index for index in mislead if index in indices[0]]
            if sure:
                refused.append(["dimension time", "--time-at"])
            perhaps = not sure
        keys = [KEYS[by](date) for date in dates]
        indices[0] = [index for index in indices[0] if not case.missing_times[index]]
        if not indices[0]:
            refused.append(["time"])
    if case.between and (by_index or 0 not in over and not by):
        refused.append(["coordinate time", "interleaved"])
    if case.unplaced and (by_index or 0 not in over and not by):
        refused.append(["coordinate time", "no value"])
    if case.refused:
        # The program first checks whether the files fit together.
        refused = [case.refused]
    printed = subprocess.run(command, capture_output=True, text=True)
    if refused:
        assert printed.returncode and any(all(word in printed.stderr for word in words) for words in refused), ("not refused by name", refused, command, case.about, printed.stdout[:500], printed.stderr)
        return False
    if perhaps and printed.returncode:
        assert "--time-at" in printed.stderr, ("refused", command, case.about, printed.stderr)
        return False
    assert printed.returncode == 0, ("refused", command, case.about, printed.stderr)
    result = json.loads(printed.stdout)
    found = result["values"]
    axis = 0 if by else None
    groups = sorted({keys[index] for index in indices[0]})
    targets = [place for place in range(len(names)) if place not in over or place == axis]
    lengths = [len(groups) if place == axis else len(indices[place]) for place in targets]
    cells = [[] for _ in range(math.prod(lengths))]
    for places in np.ndindex(*map(len, indices)):
        index = tuple(own[place] for own, place in zip(indices, places))
        if case.mask[index]:
            continue
        cell = 0
        for place, length in zip(targets, lengths):
            cell = cell * length + (groups.index(keys[index[0]]) if place == axis else places[place])
        cells[cell].append(case.values[index])
    like = Case(None, None, np.zeros(0, "i4" if case.whole else "f8"), None)
    for what in ["count", "min", "max", "sum", "mean", "stddev"] if operation == "stats" else [operation]:
        ours = found[what] if isinstance(found[what], list) else [found[what]]
        assert len(ours) == len(cells), (command, case.about, len(ours), len(cells))
        exact = what == "count" or case.whole and what in ["min", "max", "sum", "range"]
        for mine, values in zip(ours, cells):
            theirs = answers(like, what, values)
            largest = max([abs(float(value)) for value in values], default=0)
            assert alike(mine, theirs, exact, largest * max(1, len(values)) ** 0.5), (command, case.about, what, mine, theirs)
    for place, axis_of, length in zip(targets, result["dimensions"], lengths):
        name = names[place]
        assert axis_of["length"] == length, (command, axis_of, length)
        if place == axis:
            if not by.startswith("climatological"):
                assert axis_of["labels"] == [written(group)[:-3] if by == "hour" else written(group) for group in groups], (command, axis_of, groups)
        elif name == "time":
            values = [value if value != "NaN" else math.nan for value in axis_of["values"]]
            known = [index for index in range(length) if not case.missing_times[indices[0][index]]]
            calendar = next(one[3] for one in case.about)
            theirs = cftime.num2date([values[index] for index in known], axis_of["units"], calendar) if known else []
            assert [parts_of(one, 4) for one in theirs] == [parts_of(case.dates[indices[0][index]], 4) for index in known], (command, case.about, axis_of)
        else:
            texts = shown[name] or case.grid[name][0]
            assert len(texts) == length and all(math.isclose(float(text), value, rel_tol=1e-6, abs_tol=3e-5 if name == "lon" else 1e-6) for text, value in zip(texts, axis_of["values"])), (command, case.about, axis_of, texts)
    if rng.random() < 0.15:
        reduced = {names[place]: shown[names[place]] or case.grid[names[place]][0] for place in over if names[place] != "time"}
        in_netcdf([*command, "--output", str(case.files[0].parent / "result.cdf.nc")], result, all(one[4] == "f4" for one in case.about), reduced)
    return True


def in_netcdf(command, result, single, reduced):
    """Compares the same result as netCDF, read by xarray: values, types, times within their bounds, and attributes."""
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        # netCDF has no sums beyond 64 bits, which are text in JSON, and no integers beyond 53 bits next to floats.
        every = [value for values in result["values"].values() for value in (values if isinstance(values, list) else [values])]
        assert any(isinstance(value, str) or isinstance(value, int) and abs(value) > 2**53 for value in every), ("not written", command, made.stderr)
        return
    try:
        with xr.open_dataset(command[-1], decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) as file:
            for what, values in result["values"].items():
                variable = file["x" if len(result["values"]) == 1 else f"x_{what}"]
                values = np.array(values if isinstance(values, list) else [values], object).ravel()
                theirs = np.array([math.nan if value is None else float(value) for value in values])
                assert np.array_equal(variable.values.astype("f8").ravel(), theirs, equal_nan=True), (command, variable.values, theirs)
                assert list(variable.dims) == [one["name"] for one in result["dimensions"]], (command, variable.dims)
                if what in ["min", "max"] and single:
                    assert variable.dtype == "f4", (command, variable.dtype)
                assert variable.attrs["units"] == ("1" if what == "count" else "K"), (command, variable.attrs)
            if "time" in file.dims and "bounds" in file.time.attrs and all(one not in command for one in ["start", "end"]):
                ends = file[file.time.attrs["bounds"]].values
                with xr.open_dataset(command[-1], decode_times=False) as stored:
                    # An index without a time is stored as NaN, which cftime converts to a date.
                    known = ~np.isnan(stored.time.values)
                inside = [low <= time <= high for time, (low, high), has in zip(file.time.values, ends, known) if has]
                assert all(inside), (command, file.time.values, ends)
            for name, texts in reduced.items():
                middle = file[{"lat": "latitude", "lon": "longitude"}.get(name, name)].item()
                assert math.isclose(middle, (min(texts) + max(texts)) / 2, abs_tol=1e-4), (command, middle, texts)
            assert "tidemill" in file.attrs["history"] and "reduce" in file.attrs["history"], (command, file.attrs)
    finally:
        Path(command[-1]).unlink()


def main():
    rng, answered, refused, wrong, writers = random.Random(SEED), 0, 0, 0, Counter()
    ways = [of_netcdf, of_netcdf, of_h5py, of_zarr, of_xarray, of_fits, of_members, *[of_tool] * min(len(TOOLS), 2), *[of_series] * SERIES]
    with tempfile.TemporaryDirectory() as directory:
        number = 0
        while answered + refused + wrong < CASES:
            number += 1
            below = Path(directory) / str(number)
            below.mkdir()
            way = rng.choice(ways)
            case = way(rng, below, number)
            if case is None:
                continue
            writer = "series" if way == of_series else case.writer or str(case.about[0]).split("_")[0]
            for _ in range(EACH):
                try:
                    if (one_of_series if isinstance(case, Series) else one)(rng, case):
                        answered += 1
                        writers[writer, "right"] += 1
                    else:
                        refused += 1
                        writers[writer, "refused"] += 1
                except AssertionError as error:
                    wrong += 1
                    writers[writer, "wrong"] += 1
                    print("WRONG", *error.args[0], sep="\n  ")
            shutil.rmtree(below)
    for writer in sorted({one for one, _ in writers}):
        print(f"  {writer}: {writers[writer, 'right']} right, {writers[writer, 'refused']} refused, {writers[writer, 'wrong']} wrong")
    print(f"{answered + refused + wrong} reductions of {number} files: {answered} right, {refused} refused for a reason, {wrong} wrong (seed {SEED})")
    sys.exit(wrong > 0)


main()
