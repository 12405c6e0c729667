#!/usr/bin/env python3
"""Means, a median and a histogram of one variable on one core, warm: `tidemill reduce --local` against CDO, NCO, xarray, h5py and zarr-python
with numpy.

  bench/reduce.py [--binary target/release/tidemill] [--mib 1024] [--rounds 5] [--cpu] [--quick] [--python PYTHON]

PYTHON needs netCDF4, xarray, h5py and zarr; peers that are not installed are skipped. All read the same file from the page cache, in turn,
on one core. Times are medians of the whole command, and for the Python peers of the reduction alone, without imports.
`stored.nc` is `three.nc` as a node stores it, written in writes of 1 MiB. netCDF4 writes pieces of 4 KiB, and the Linux kernel copies
such a file out of its page cache at half the speed. `read`, `inflate` and `unzstd` are lower bounds: one `read()` of the file after the
other, and the decoding of all chunks by the fastest Python decoder, without a reduction. With --cpu the seconds are processor time (user
and system), for machines with other load.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAKE = """
import sys, numpy as np, netCDF4, zarr
directory, mib = sys.argv[1], int(sys.argv[2])
days = mib * 2**20 // (4 * 180 * 360)
rng = np.random.default_rng(1)
def block(count):
    lat = 30 * np.cos(np.linspace(-1.5, 1.5, 180))[None, :, None]
    return (260 + lat + np.round(rng.normal(0, 3, (count, 180, 360)), 1)).astype('f4')
files = []
for name, form, more in [('three.nc', 'NETCDF3_64BIT_OFFSET', {}), ('four.nc', 'NETCDF4', dict(zlib=True, complevel=4, shuffle=True, chunksizes=(8, 180, 360)))]:
    file = netCDF4.Dataset(directory + '/' + name, 'w', format=form)
    for dimension, size in [('time', days), ('lat', 180), ('lon', 360)]:
        file.createDimension(dimension, size)
        file.createVariable(dimension, 'f8', (dimension,))[:] = np.arange(size)
    file['time'].units = 'days since 1990-01-01'
    files.append((file, file.createVariable('tas', 'f4', ('time', 'lat', 'lon'), fill_value=1e20, **more)))
cube = zarr.open_group(directory + '/cube.zarr', mode='w', zarr_format=3).create_array('tas', shape=(days, 180, 360), chunks=(16, 180, 360), dtype='f4', compressors=[zarr.codecs.ZstdCodec(level=3)])
for start in range(0, days, 64):
    values = block(min(64, days - start))
    for _, variable in files:
        variable[start:start + len(values)] = values
    cube[start:start + len(values)] = values
for file, _ in files:
    file.close()
"""

PEERS = {
    "xarray": "import xarray; run = lambda: float(xarray.open_dataset(path).tas.mean())",
    "xarray-median": "import xarray; run = lambda: float(xarray.open_dataset(path).tas.median())",
    "read": "import os\ndef run():\n    f = os.open(path, os.O_RDONLY); b = bytearray(256 << 10)\n    while os.readv(f, [b]):\n        pass",
    "inflate": "import deflate, h5py\nv = h5py.File(path)['tas']\nchunks = [v.id.read_direct_chunk((i, 0, 0))[1] for i in range(0, len(v), 8)]\ndef run():\n    for chunk in chunks:\n        deflate.zlib_decompress(chunk, 8 * 180 * 360 * 4)",
    "unzstd": "import numcodecs, pathlib\nfrom numcodecs.zstd import decompress\nchunks = [one.read_bytes() for one in pathlib.Path(path).glob('tas/c/*/*/*')]\nbuffer = bytearray(16 * 180 * 360 * 4)\ndef run():\n    for chunk in chunks:\n        decompress(chunk)",
    "numpy-histogram": "import h5py, netCDF4, numpy as np\ndef run():\n    f = netCDF4.Dataset(path); f.set_auto_mask(False); v = f['tas']; n = 0\n    for i in range(0, len(v), 64):\n        n = n + np.histogram(v[i:i+64], 100, (200, 350))[0]",
    "h5py": "import h5py, numpy as np\ndef run():\n    v = h5py.File(path)['tas']; s = n = 0\n    for i in range(0, len(v), 8):\n        x = v[i:i+8]; s += x.sum(dtype='f8'); n += x.size\n    return s / n",
    "zarr": "import zarr, numpy as np\ndef run():\n    v = zarr.open_group(path, mode='r')['tas']; s = n = 0\n    for i in range(0, v.shape[0], 16):\n        x = v[i:i+16]; s += x.sum(dtype='f8'); n += x.size\n    return s / n",
}


def python_peer(python, name, path, cpu):
    clock = "time.process_time" if cpu else "time.perf_counter"
    code = f"import time; path = {str(path)!r}\n{PEERS[name]}\nbegan = {clock}(); value = run(); print({clock}() - began, value)"
    printed = subprocess.run(["taskset", "-c", "1", python, "-c", code], capture_output=True, text=True, check=True)
    seconds, value = printed.stdout.split()
    return float(seconds), None if value == "None" else float(value)


def clock(cpu):
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime if cpu else time.perf_counter()


def command(words, cpu):
    began = clock(cpu)
    printed = subprocess.run(["taskset", "-c", "1", *words], capture_output=True, text=True, check=True)
    seconds = clock(cpu) - began
    return seconds, next((float(word) for word in printed.stdout.split()[::-1] if word.replace(".", "").isdigit()), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default="target/release/tidemill")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dir", help="directory for the files, which later runs use again")
    args = parser.parse_args()
    mib, rounds = (32, 1) if args.quick else (args.mib, args.rounds)
    directory = Path(args.dir or tempfile.mkdtemp(prefix="reduce-", dir=os.environ.get("TMPDIR", "/tmp")))
    directory.mkdir(exist_ok=True)
    if not (directory / "cube.zarr").exists():
        subprocess.run([args.python, "-c", MAKE, str(directory), str(mib)], check=True)
    subprocess.run(["dd", f"if={directory / 'three.nc'}", f"of={directory / 'stored.nc'}", "bs=1M", "status=none"], check=True)
    scratch = str(directory / "out.nc")
    # The measurement reads from the page cache.
    subprocess.run(f"cat {directory}/*.nc {directory}/cube.zarr/tas/c/*/*/* > /dev/null", shell=True, check=True)
    cdo = ["cdo", "-s", "outputf,%.9g,1", "-timmean", "-fldmean,weights=FALSE"]
    cases = {
        ("mean", "three.nc"): {"cdo": [*cdo, directory / "three.nc"], "xarray": None, "read": None},
        ("mean", "stored.nc"): {"cdo": [*cdo, directory / "stored.nc"], "xarray": None, "read": None,
                     "nco": ["ncwa", "-O", "-v", "tas", "-a", "time,lat,lon", directory / "stored.nc", scratch]},
        ("mean", "four.nc"): {"cdo": [*cdo, directory / "four.nc"], "h5py": None, "inflate": None},
        ("mean", "cube.zarr"): {"zarr": None, "unzstd": None},
        ("median", "three.nc"): {"xarray-median": None},
        ("histogram", "three.nc"): {"numpy-histogram": None},
    }
    for (operation, name), peers in cases.items():
        ours, theirs = [], {}
        for _ in range(rounds):
            more = ["--bins", "200:350:100"] if operation == "histogram" else []
            seconds, value = command([args.binary, "reduce", operation, f"{directory / name}:tas", "--local", *more], args.cpu)
            ours.append(seconds)
            for peer, words in peers.items():
                if words and not shutil.which(words[0]):
                    continue
                found, printed = command(map(str, words), args.cpu) if words else python_peer(args.python, peer, directory / name, args.cpu)
                assert printed is None or abs(printed - value) < 1e-3 * abs(value), (name, peer, printed, value)
                theirs.setdefault(peer, []).append(found)
        bytes_of = mib * 2**20
        line = {"clock": "cpu" if args.cpu else "wall", "operation": operation, "file": name, "MiB": mib, "tidemill_s": round(statistics.median(ours), 4), "GB/s": round(bytes_of / statistics.median(ours) / 1e9, 2)}
        for peer, found in theirs.items():
            line |= {f"{peer}_s": round(statistics.median(found), 4), f"x_{peer}": round(statistics.median(found) / statistics.median(ours), 2)}
        print(json.dumps(line), flush=True)
    if not args.dir:
        shutil.rmtree(directory)


main()
