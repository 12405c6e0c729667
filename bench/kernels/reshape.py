#!/usr/bin/env python3
"""Kernels whose output is as large as their input, against their peers, file to file from a warm page cache.

  cargo build --release -p tidemill-compute --examples
  python3 -m venv bench/out/venv && bench/out/venv/bin/pip install numpy opencv-python-headless
  bench/out/venv/bin/python bench/kernels/reshape.py [--mib 256] [--rounds 7] [NAME ...]

Ours and the peer take turns. Prints JSON lines with medians and the ratios of the peer's time to ours, by the clock and by processor
time.
"""
import argparse
import json
import os
import subprocess

import cv2
import numpy as np

from driver import ROOT, Ours, result, timed


def sort(dtype, source, target):
    values = np.fromfile(source, {"i32": "i4", "f64": "f8"}[dtype])
    values.sort()
    values.tofile(target)


def transpose(columns, source, target):
    cv2.transpose(np.fromfile(source).reshape(-1, columns)).tofile(target)


def cast(source, target):
    np.fromfile(source).astype("f4").tofile(target)


def subset(columns, source, target):
    np.ascontiguousarray(np.memmap(source, mode="r").view("f8").reshape(-1, columns)[::2, ::2]).tofile(target)


def copy(source, target):
    subprocess.run(["cp", source, target], check=True)


def cases(directory, mib):
    """Lists name, kernel with arguments, input, name of the peer, peer, and whether outputs must be equal."""
    chance = np.random.default_rng(1)
    columns = 4096
    size = mib << 20

    def file(name, values):
        path = f"{directory}/{name}"
        with open(path, "wb") as to:
            for start in range(0, values.nbytes, 8 << 20):
                to.write(memoryview(values).cast("B")[start:start + (8 << 20)])
        return path

    f64 = file("f64", chance.standard_normal(size // 8))
    i32 = file("i32", chance.integers(-2**31, 2**31, size // 4, dtype=np.int32))
    for dtype, path in [("i32", i32), ("f64", f64)]:
        for threads in "12":
            yield (f"sort {dtype}, {threads} threads", ["sort", f"dtype={dtype}", f"threads={threads}"], path, "numpy",
                   lambda s, t, d=dtype: sort(d, s, t), True)
    yield "scale f64, new file", ["scale", "a=2", "b=1"], f64, "cp", copy, False
    yield "cast f64 to f32", ["cast", "to=f32"], f64, "numpy", cast, True
    shape = f"shape={size // 8 // columns}x{columns}"
    yield ("subset f64, every second", ["subset", shape, "step=2x2"], f64, "numpy",
           lambda s, t: subset(columns, s, t), True)
    yield ("transpose f64, file to file", ["transpose", f"columns={columns}"], f64, "opencv",
           lambda s, t: transpose(columns, s, t), True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    directory = f"{ROOT}/bench/out/kernels"
    os.makedirs(directory, exist_ok=True)
    ours = Ours()
    for name, kernel, source, peer_name, peer, equal in cases(directory, options.mib):
        if options.names and not any(wanted in name for wanted in options.names):
            continue
        mine, theirs = [], []
        outputs = [f"{directory}/ours", f"{directory}/peer"]
        for _ in range(options.rounds):
            for output in outputs:
                if os.path.exists(output):
                    os.unlink(output)
            mine.append(ours.run(outputs[0], source, *kernel))
            theirs.append(timed(peer, source, outputs[1]))
        if equal:
            subprocess.run(["cmp", *outputs], check=True)
        print(json.dumps({"what": name, "peer": peer_name, "bytes": os.path.getsize(source),
                          **result(mine, theirs)}), flush=True)


if __name__ == "__main__":
    main()
