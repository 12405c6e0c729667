"""Makes the files in fixtures/, with the descriptions of the real libraries: needs netCDF4, h5py, hdf5plugin, zarr and astropy."""

import json
import pathlib
import shutil

import h5py
import hdf5plugin
import netCDF4
import numcodecs
import numpy as np
import zarr
from astropy.io import fits
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

import describe

HERE = pathlib.Path(__file__).parent / "fixtures"
CHANCE = np.random.default_rng(21)


def classic():
    for number, kind in ((1, "NETCDF3_CLASSIC"), (2, "NETCDF3_64BIT_OFFSET"), (5, "NETCDF3_64BIT_DATA")):
        with netCDF4.Dataset(HERE / f"cdf{number}.nc", "w", format=kind) as f:
            f.title = "many variables"
            f.numbers = np.array([1, 2, 3], "i2")
            f.createDimension("time", None)
            f.createDimension("lat", 5)
            f.createDimension("lon", 7)
            types = ["i1", "S1", "i2", "i4", "f4", "f8"] + (["u1", "u2", "u4", "i8", "u8"] if number == 5 else [])
            for kind in types:
                for dims in (("time", "lat", "lon"), ("lat", "lon"), ("time",), ()):
                    v = f.createVariable(f"{kind}_{len(dims)}{'t' if 'time' in dims else ''}", kind, dims)
                    shape = tuple(4 if d == "time" else len(f.dimensions[d]) for d in dims)
                    if kind == "S1":
                        v[...] = CHANCE.choice(np.frombuffer(b"abcdef", "S1"), shape)
                    else:
                        v[...] = CHANCE.integers(0, 120, shape).astype(kind)
            v = f.createVariable("packed", "i2", ("time", "lat"), fill_value=-999)
            v.set_auto_maskandscale(False)
            v.scale_factor, v.add_offset, v.units = 0.5, 10.0, "K"
            v.valid_range = np.array([-300, 300], "i2")
            v.missing_value = np.array([-1, -2], "i2")
            v[0:3] = CHANCE.integers(-300, 300, (3, 5)).astype("i2")
    with netCDF4.Dataset(HERE / "cdf1-one-record.nc", "w", format="NETCDF3_CLASSIC") as f:
        f.createDimension("time", None)
        f.createDimension("x", 3)
        f.createVariable("fixed", "f8", ("x",))[:] = [1, 2, 3]
        f.createVariable("odd", "i1", ("time", "x"))[:] = CHANCE.integers(0, 99, (7, 3)).astype("i1")
    data = bytearray((HERE / "cdf1-one-record.nc").read_bytes())
    data[4:8] = b"\xff" * 4
    (HERE / "cdf1-streaming.nc").write_bytes(data)


def netcdf4():
    with netCDF4.Dataset(HERE / "netcdf4.nc", "w") as f:
        f.title, f.many = "groups and dimensions", ["a", "bc", ""]
        f.createDimension("time", None)
        f.createDimension("lat", 6)
        f.createDimension("lon", 8)
        f.createDimension("unused", 3)
        t = f.createVariable("time", "f8", ("time",))
        t.units, t.calendar = "days since 1850-01-01", "noleap"
        t[:] = np.arange(5)
        f.createVariable("lat", "f4", ("lat",))[:] = np.linspace(-90, 90, 6)
        for name, options in {
            "plain": {},
            "deflated": {"zlib": True, "complevel": 4, "chunksizes": (2, 4, 3)},
            "checked": {"zlib": True, "shuffle": False, "fletcher32": True, "chunksizes": (1, 6, 8)},
            "zstd": {"compression": "zstd", "chunksizes": (3, 3, 3)},
            "big": {"endian": "big", "chunksizes": (2, 2, 8), "zlib": True},
        }.items():
            v = f.createVariable(name, "f4", ("time", "lat", "lon"), fill_value=-1.0 if name != "plain" else None, **options)
            v[:] = CHANCE.normal(size=(5, 6, 8)).astype("f4")
        f.createVariable("short", "i2", ("time", "lon"), zlib=True)[:2] = 3
        f.createVariable("fixed", "u2", ("lat", "lon"), contiguous=True)[:] = CHANCE.integers(0, 9999, (6, 8))
        f.createVariable("empty", "i8", ("lat", "lon"), chunksizes=(2, 2), fill_value=7)
        f.createVariable("unsigned", "i1", ("lat",)).setncattr("_Unsigned", "true")
        f.createVariable("scalar", "f8", ())[...] = 4.5
        f.createVariable("words", str, ("lat",))[0] = "text"
        # The variable has two dimensions, and one has its name.
        f.createVariable("lon", "f8", ("lon", "lat"))[:] = CHANCE.normal(size=(8, 6))
        for n in range(12):
            f["deflated"].setncattr(f"note_{n:02}", f"text {n} " * (n + 1))
        g = f.createGroup("model/run")
        g.createDimension("level", 4)
        g.createVariable("lat", "f4", ("level",))[:] = np.arange(4)
        v = g.createVariable("t", "i4", ("time", "level", "lat"), zlib=True)
        v[:] = CHANCE.integers(0, 99, (5, 4, 6))
        # The variable has the name of a dimension that it does not have.
        g.createDimension("z", 3)
        g.createVariable("z", "f4", ("level",))[:] = np.arange(4)
    with netCDF4.Dataset(HERE / "netcdf4-classic.nc", "w", format="NETCDF4_CLASSIC") as f:
        f.createDimension("time", None)
        f.createDimension("x", 10)
        f.createVariable("a", "f8", ("time", "x"), zlib=True)[:] = CHANCE.normal(size=(4, 10)).round(2)


def hdf5(name, version):
    with h5py.File(HERE / name, "w", libver=version) as f:
        f.attrs["fixed"] = np.bytes_("text")
        f.attrs["list"] = np.arange(4, dtype=">i4")
        f.create_dataset("compact_like", data=np.arange(5, dtype="<i2"))
        dcpl = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        dcpl.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        d = h5py.Dataset(h5py.h5d.create(f.id, b"compact", h5py.h5t.STD_I32LE, space, dcpl))
        d[:] = [7, 8, 9]
        f.create_dataset("single", data=CHANCE.integers(0, 9, (4, 6)), chunks=(4, 6))
        f.create_dataset("single_deflated", data=CHANCE.integers(0, 9, (4, 6)), chunks=(4, 6), compression="gzip")
        f.create_dataset("fixed_array", data=CHANCE.integers(0, 99, (9, 10), dtype="u1"), chunks=(2, 3))
        f.create_dataset("fixed_filtered", data=CHANCE.integers(0, 99, (9, 10), dtype="i4"), chunks=(2, 3), compression="gzip", shuffle=True, maxshape=(12, 10))
        f.create_dataset("extensible", data=CHANCE.integers(0, 99, (5, 30), dtype="i2"), chunks=(2, 3), maxshape=(5, None))
        f.create_dataset("extensible_filtered", data=CHANCE.integers(0, 99, (40, 6), dtype="i2"), chunks=(1, 3), maxshape=(None, 8), compression="gzip")
        f.create_dataset("tree", data=CHANCE.integers(0, 99, (10, 12), dtype="i2"), chunks=(3, 2), maxshape=(None, None))
        f.create_dataset("tree_filtered", data=CHANCE.integers(0, 99, (10, 12), dtype="i2"), chunks=(3, 2), maxshape=(None, None), compression="gzip", fletcher32=True)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_chunk((2, 2))
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        d = h5py.Dataset(h5py.h5d.create(f.id, b"implicit", h5py.h5t.IEEE_F32BE, h5py.h5s.create_simple((5, 4)), early))
        d[:] = CHANCE.normal(size=(5, 4))
        sparse = f.create_dataset("sparse", (300000,), "i1", chunks=(1,), maxshape=(None,), fillvalue=5)
        for at in (0, 3, 17, 100, 5000, 299999):
            sparse[at] = at % 100
        paged = f.create_dataset("paged", (5000, 2), "i1", chunks=(1, 2), fillvalue=-1)
        for at in (0, 1023, 2048, 4999):
            paged[at] = at % 100
        f.create_dataset("half", data=np.arange(6, dtype="f2"))
        f.create_dataset("complex", data=np.arange(4) * 1j)
        f.create_dataset("lz4", data=np.arange(40, dtype="i4"), chunks=(20,), **hdf5plugin.LZ4())
        f.create_dataset("blosc", data=np.arange(40, dtype="i4"), chunks=(20,), **hdf5plugin.Blosc())
        f.create_dataset("records", data=np.zeros(3, [("a", "<i4"), ("b", ">f8"), ("c", "S3")]))
        f.create_dataset("flags", data=np.array([True, False]))
        f.create_dataset("nothing", data=h5py.Empty("f4"))
        f["soft"] = h5py.SoftLink("/single")
        f["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
        f["named_type"] = np.dtype("<i8")
        d = f.create_dataset("typed", (3,), f["named_type"])
        d[:] = [1, 2, 3]
        d.attrs.create("typed", 6, dtype=f["named_type"])
        for n in range(30):
            d.attrs[f"attribute {n}"] = "x" * n * 9
        d.attrs["large"] = np.arange(700, dtype="f8")
        group = f.create_group("many")
        for n in range(50):
            group.create_group(f"member_{n:03}_" + "y" * (n % 20))
        f["many/member_007_" + "y" * 7].create_dataset("deep", data=np.arange(3.0))


def zarr_two():
    g = zarr.open_group(HERE / "two.zarr", mode="w", zarr_format=2)
    g.attrs["title"] = "version 2"
    a = g.create_array("tas", shape=(5, 7), chunks=(2, 3), dtype=">f4", fill_value=-1.5, compressors=numcodecs.Zstd(), attributes={"_ARRAY_DIMENSIONS": ["t", "x"], "units": "K"})
    a[:4] = CHANCE.normal(size=(4, 7))
    a = g.create_array("inner/nested", shape=(6, 4), chunks=(4, 4), dtype="i2", order="F", compressors=numcodecs.GZip(), filters=[numcodecs.Shuffle(2)], chunk_key_encoding={"name": "v2", "separator": "/"})
    a[:] = CHANCE.integers(0, 99, (6, 4))
    g.create_array("blosc", shape=(4,), chunks=(4,), dtype="u8", compressors=numcodecs.Blosc())[:] = 3
    g.create_array("none", shape=(3,), chunks=(2,), dtype="|b1", compressors=None, fill_value=True)
    g.create_array("point", shape=(), chunks=(), dtype="f8", compressors=None)[...] = 2.5
    zarr.consolidate_metadata(HERE / "two.zarr", zarr_format=2)


def zarr_three(store):
    g = zarr.open_group(store, mode="w", zarr_format=3)
    g.attrs.update({"title": "version 3", "numbers": [1.5, 2], "word": ["a", "b"]})
    a = g.create_array("tas", shape=(9, 10), chunks=(2, 3), dtype="f4", compressors=ZstdCodec(), dimension_names=["t", "x"], fill_value=float("nan"), attributes={"scale_factor": 2})
    a[:6] = CHANCE.normal(size=(6, 10))
    a = g.create_array("group/sharded", shape=(9, 10), chunks=(2, 2), shards=(4, 6), dtype="i4", compressors=GzipCodec(), fill_value=-7)
    a[:5, :7] = CHANCE.integers(0, 99, (5, 7))
    codec = ShardingCodec(chunk_shape=(3,), codecs=[BytesCodec(endian="big"), Crc32cCodec()], index_location="start")
    g.create_array("first", shape=(20,), chunks=(6,), dtype="i2", serializer=codec, compressors=None, filters=None)[:11] = np.arange(11)
    a = g.create_array("turned", shape=(3, 4, 5), chunks=(2, 4, 3), dtype="u2", filters=[TransposeCodec(order=(2, 0, 1))], compressors=None, chunk_key_encoding={"name": "v2", "separator": "."})
    a[:] = CHANCE.integers(0, 999, (3, 4, 5))
    g.create_array("point", shape=(), chunks=(), dtype="f8", compressors=None)[...] = 2.5
    g.create_array("blosc", shape=(4,), chunks=(4,), dtype="i8", compressors=BloscCodec())[:] = 3


def images():
    data = CHANCE.integers(-99, 99, (4, 6)).astype(">i2")
    first = fits.PrimaryHDU(data)
    first.header["BLANK"] = -99
    first.header["OBJECT"] = ("it's", "a comment")
    first.header["LONGTEXT"] = "many words " * 12
    first.header["EXPOSURE"] = 1.5
    first.header["DONE"] = True
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=np.arange(5))])
    cube = fits.ImageHDU(CHANCE.normal(size=(2, 3, 5)).astype(">f4"), name="CUBE")
    bytes_ = fits.ImageHDU(CHANCE.integers(0, 200, 7).astype("u1"))
    fits.HDUList([first, table, cube, bytes_]).writeto(HERE / "images.fits", output_verify="fix")


def climate():
    """Makes a file like those of models: coordinates of CF, in an unusual calendar."""
    for name, kind, calendar in (("climate.nc", "NETCDF4", "360_day"), ("climate-classic.nc", "NETCDF3_CLASSIC", "noleap")):
        with netCDF4.Dataset(HERE / name, "w", format=kind) as f:
            f.institution, f.experiment, f.realization = "NCAR, Boulder", "historical" if kind == "NETCDF4" else "ssp585", np.int32(3)
            f.createDimension("time", None)
            f.createDimension("lat", 18)
            f.createDimension("lon", 12)
            packed = {"zlib": True, "shuffle": True, "fletcher32": True} if kind == "NETCDF4" else {}
            time = f.createVariable("time", "f8", ("time",), chunksizes=(5,) if packed else None, **packed)
            time.units, time.calendar, time.standard_name = "days since 1850-01-01", calendar, "time"
            year = 360 if calendar == "360_day" else 365
            time[:] = (140 if packed else 165) * year + np.arange(24) * year / 12 + 15
            for coordinate, units, first, step in (("lat", "degrees_north", 5, 10 / 3), ("lon", "degrees_east", 0, 30)):
                v = f.createVariable(coordinate, "f4", (coordinate,), **packed)
                v.units, v.standard_name = units, {"lat": "latitude", "lon": "longitude"}[coordinate]
                v[:] = first + np.arange(len(f.dimensions[coordinate])) * step
            v = f.createVariable("tas" if packed else "pr", "f4", ("time", "lat", "lon"), fill_value=1e20, **packed)
            v.units, v.standard_name = ("K", "air_temperature") if packed else ("kg m-2 s-1", "precipitation_flux")
            v.long_name = "Near-Surface Air Temperature" if packed else "Precipitation"
            v[:] = np.broadcast_to(np.arange(12, dtype="f4"), (24, 18, 12))


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    classic()
    netcdf4()
    hdf5("old.h5", "earliest")
    hdf5("new.h5", "latest")
    images()
    zarr_two()
    zarr_three(HERE / "three.zarr")
    shutil.copytree(HERE / "three.zarr", HERE / "consolidated.zarr")
    zarr.consolidate_metadata(HERE / "consolidated.zarr")
    with zarr.storage.ZipStore(HERE / "three.zarr.zip", mode="w") as store:
        zarr_three(store)
    climate()
    for path in sorted(HERE.iterdir()):
        streaming = path.name == "cdf1-streaming.nc"
        truth = HERE / "cdf1-one-record.nc" if streaming else path
        (HERE / (path.name + ".json")).write_text(json.dumps(describe.describe(str(truth)), separators=(",", ":")) + "\n")
