#!/usr/bin/env python3
"""The kernels pca and kmeans against scikit-learn, from a warm page cache.

  cargo build --release -p tidemill-compute --example kernel_write
  python3 -m venv bench/out/venv/sklearn && bench/out/venv/sklearn/bin/pip install numpy scikit-learn
  bench/out/venv/sklearn/bin/python bench/kernels/cluster.py [--mib 256] [--rounds 5] [NAME ...]

Ours and the peer take turns on the same file, with one thread each unless stated otherwise. The peer has the file in memory before
its time begins. kmeans starts from the same centres and moves them the same number of times. Results are compared. Prints JSON
lines: medians in seconds, and the median of the rounds' ratios of the peer's time to ours.
"""
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import json
import statistics
import time
import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from driver import ROOT, Ours

DTYPES = {"f32": np.float32, "f64": np.float64}


def table(directory, dtype, columns, mib):
    """Returns rows around twenty centres, with columns of different spread."""
    path = f"{directory}/table-{dtype}-{columns}-{mib}"
    size = DTYPES[dtype]().itemsize
    rows = (mib << 20) // size // columns
    if not os.path.exists(path):
        chance = np.random.default_rng(1)
        centres = chance.normal(0, 4, (20, columns))
        spread = 1 / (1 + np.arange(columns))
        with open(path, "wb", buffering=0) as to:
            for start in range(0, rows, 1 << 16):
                count = min(1 << 16, rows - start)
                values = centres[chance.integers(0, 20, count)] + chance.normal(3, 1 + spread, (count, columns))
                to.write(values.astype(DTYPES[dtype]).tobytes())
    return path, np.fromfile(path, DTYPES[dtype]).reshape(-1, columns)


def report(what, mine, theirs, ratios, goal, **more):
    print(json.dumps({"what": what, "peer": "scikit-learn", "ours_s": round(statistics.median(mine), 4),
                      "peer_s": round(statistics.median(theirs), 4), "ratio": round(statistics.median(ratios), 2),
                      **more, "goal": goal}), flush=True)


def rounds_of(count, ours, peer):
    mine, theirs = [], []
    for number in range(count + 1):
        m = ours()
        start = time.perf_counter()
        found = peer()
        t = time.perf_counter() - start
        if number:
            mine.append(m)
            theirs.append(t)
    return found, mine, theirs, [t / m for m, t in zip(mine, theirs)]


def pca(ours, directory, dtype, columns, mib, rounds):
    path, values = table(directory, dtype, columns, mib)
    output = f"{directory}/ours"
    words = ["pca", f"dtype={dtype}", f"columns={columns}", "out=f64"]
    found, *times = rounds_of(rounds, lambda: ours.run(output, path, *words)[0], lambda: PCA().fit(values))
    result = np.fromfile(output).reshape(columns, columns + 2)
    assert np.allclose(result[:, 0], found.explained_variance_, rtol=1e-3 if dtype == "f32" else 1e-9)
    if dtype == "f64":
        assert np.allclose(result[:, 2:], found.components_, atol=1e-5)
    report(f"pca of {dtype}, {columns} columns", *times, 2, bytes=values.nbytes)


def kmeans(ours, directory, dtype, columns, k, mib, rounds, iterations=10):
    path, values = table(directory, dtype, columns, mib)
    start, output = f"{directory}/start", f"{directory}/ours"
    values[np.random.default_rng(2).choice(len(values), k, replace=False)].tofile(start)
    first = np.fromfile(start, values.dtype).reshape(k, columns)
    words = ["kmeans", f"dtype={dtype}", f"columns={columns}", f"k={k}", f"iterations={iterations}", "tolerance=0", "out=f64",
             f"start={start}"]

    def peer():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return KMeans(k, init=first, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(values)

    found, *times = rounds_of(rounds, lambda: ours.run(output, path, *words)[0], peer)
    result = np.fromfile(output).reshape(k, columns + 1)
    assert found.n_iter_ == iterations
    assert np.allclose(result[:, 1:], found.cluster_centers_, atol=0.05 if dtype == "f32" else 1e-6)
    report(f"kmeans of {dtype}, {columns} columns, {k} clusters", *times, 1.1, bytes=values.nbytes, iterations=iterations)
    ratios = []
    for _ in range(3):
        one, two = (ours.run(output, path, *words, f"threads={count}")[0] for count in (1, 2))
        ratios.append(one / two)
    print(json.dumps({"what": f"kmeans of {dtype}, {columns} columns, {k} clusters, two threads", "peer": "one thread",
                      "ratio": round(statistics.median(ratios), 2), "goal": 1.8}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    directory = f"{ROOT}/bench/out/kernels"
    os.makedirs(directory, exist_ok=True)
    ours = Ours()
    for dtype in ("f64", "f32"):
        for columns in (16, 64, 256):
            if not options.names or "pca" in options.names:
                pca(ours, directory, dtype, columns, options.mib, options.rounds)
        for columns, k in ((16, 16), (64, 20), (32, 100)):
            if not options.names or "kmeans" in options.names:
                kmeans(ours, directory, dtype, columns, k, options.mib // 4, options.rounds)


if __name__ == "__main__":
    main()
