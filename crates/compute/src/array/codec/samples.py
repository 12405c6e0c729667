"""Makes samples.bin: values in the encodings of real libraries; `tests.rs` makes the same values. Needs numcodecs, h5py, hdf5plugin, blosc2.

Each sample has the length of its name (1 byte), the name, the number of its bytes (4 bytes, little-endian), and the bytes.
"""

import pathlib
import tempfile

import blosc2
import h5py
import hdf5plugin
import numcodecs
import numpy as np

SAMPLES = {}


def values(how, count, kind):
    if how == "walk":
        return (np.arange(count, dtype="u8") ** 2 // 50 % 101).astype(kind)
    if how == "same":
        return np.full(count, 3, kind)
    state, noise = 1, []
    for _ in range(count * np.dtype(kind).itemsize):
        state = (state * 1103515245 + 12345) % 2**31
        noise.append(state >> 16 & 255)
    return np.array(noise, "u1").view(kind)


def keep(codec, what, how, count, kind, stored):
    SAMPLES[f"{codec}.{what}.{how}.{count}.{kind}"] = bytes(stored)


def by_hdf5(codec, what, how, count, kind, shape, filters):
    with tempfile.TemporaryDirectory() as directory, h5py.File(f"{directory}/x.h5", "w") as file:
        array = file.create_dataset("x", data=values(how, count, kind).reshape(shape), chunks=shape, **filters)
        mask, stored = array.id.read_direct_chunk((0,) * len(shape))
        if mask == 0:
            keep(codec, what, how, count, kind, stored)


if __name__ == "__main__":
    cases = [("walk", 3003, "i2"), ("walk", 1000, "f8"), ("noise", 100, "f4"), ("same", 70, "u1"), ("walk", 5, "i4")]
    for how, count, kind in cases:
        for name in ("blosclz", "lz4", "zlib", "zstd"):
            for shuffle in range(3):
                codec = numcodecs.Blosc(cname=name, shuffle=shuffle)
                keep("blosc", f"{name}{shuffle}", how, count, kind, codec.encode(values(how, count, kind)))
                filters = hdf5plugin.Blosc2(cname=name, filters=shuffle)
                by_hdf5("blosc2", f"{name}{shuffle}", how, count, kind, (count,), filters)
        if count % 7 == 0:
            by_hdf5("blosc2", "grid", how, count, kind, (7, count // 7), hdf5plugin.Blosc2(cname="lz4", filters=1))
        frame = blosc2.SChunk(chunksize=1024, data=values(how, count, kind), cparams={"typesize": np.dtype(kind).itemsize})
        keep("blosc2", "frame", how, count, kind, frame.to_cframe())
        chunk = blosc2.compress(values(how, count, kind), typesize=np.dtype(kind).itemsize)
        keep("blosc2", "chunk", how, count, kind, chunk)
        for name, number in (("none", 0), ("lz4", 2), ("zstd", 3)):
            for block in (0, 64):
                filters = hdf5plugin.Bitshuffle(nelems=block, cname=name)
                by_hdf5("bitshuffle", f"{number}-{block}", how, count, kind, (count,), filters)
        by_hdf5("lzf", "h5py", how, count, kind, (count,), {"compression": "lzf"})
    with open(pathlib.Path(__file__).parent / "samples.bin", "wb") as file:
        for name, stored in sorted(SAMPLES.items()):
            file.write(bytes([len(name)]) + name.encode() + len(stored).to_bytes(4, "little") + stored)
