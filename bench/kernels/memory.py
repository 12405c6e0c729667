#!/usr/bin/env python3
"""Inner loops on memory against their peers, with results in memory that was used before.

  cargo build --release -p tidemill-compute --examples
  python3 -m venv bench/out/venv && bench/out/venv/bin/pip install numpy opencv-python-headless
  bench/out/venv/bin/python bench/kernels/memory.py [--rounds 9] [NAME ...]

Ours and the peer take turns, with one thread each. Prints JSON lines with medians and the ratios of the peer's time to ours.
"""
import argparse
import json
import os
import subprocess

import cv2
import numpy as np

from driver import ROOT, Loops, result, timed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    cv2.setNumThreads(1)
    directory = f"{ROOT}/bench/out/kernels"
    os.makedirs(directory, exist_ok=True)
    ours = Loops()
    chance = np.random.default_rng(1)

    columns = 4096
    matrix = chance.standard_normal((8192, columns))
    turned = np.ones((columns, 8192))
    matrix.tofile(f"{directory}/matrix")
    image = cv2.GaussianBlur(chance.integers(0, 256, (4096, 4096), dtype=np.uint8), (5, 5), 0)
    image.tofile(f"{directory}/image")
    chance.integers(0, 256, 256 << 20, dtype=np.uint8).tofile(f"{directory}/bytes")
    kept = {}

    def gradient():
        kept["x"] = cv2.Sobel(image, cv2.CV_16S, 1, 0, kept.get("x"))
        kept["y"] = cv2.Sobel(image, cv2.CV_16S, 0, 1, kept.get("y"))
        kept["ax"] = cv2.absdiff(kept["x"], 0, kept.get("ax"))
        kept["ay"] = cv2.absdiff(kept["y"], 0, kept.get("ay"))
        kept["sum"] = cv2.add(kept["ax"], kept["ay"], kept.get("sum"), None, cv2.CV_8U)

    def both():
        kept["x"], kept["y"] = cv2.spatialGradient(image, kept.get("x"), kept.get("y"))
        kept["ax"] = cv2.absdiff(kept["x"], 0, kept.get("ax"))
        kept["ay"] = cv2.absdiff(kept["y"], 0, kept.get("ay"))
        kept["sum"] = cv2.add(kept["ax"], kept["ay"], kept.get("sum"), None, cv2.CV_8U)

    def same_image():
        assert int(ours.found) == int(kept["sum"].sum(dtype=np.uint64)), "the images differ"

    cases = [
        ("transpose f64", ("transpose", "matrix", columns), "memcpy", lambda: ours.run("copy", f"{directory}/matrix"), None),
        ("transpose f64", ("transpose", "matrix", columns), "opencv",
         lambda: timed(cv2.transpose, matrix, turned), None),
        ("sobel", ("sobel", "image", 4096), "opencv, Sobel twice", lambda: timed(gradient), same_image),
        ("sobel", ("sobel", "image", 4096), "opencv, spatialGradient", lambda: timed(both), same_image),
        ("fingerprint", ("fingerprint", "bytes"), "memcpy", lambda: ours.run("copy", f"{directory}/bytes"), None),
        ("scale f64 in place", ("scale-in-place", "matrix"), "cp",
         lambda: timed(subprocess.run, ["cp", f"{directory}/matrix", f"{directory}/copy"]), None),
    ]
    for name, words, peer_name, peer, check in cases:
        if options.names and not any(wanted in name for wanted in options.names):
            continue
        what, file, *number = words
        mine, theirs = [], []
        for turn in range(options.rounds + 1):
            if os.path.exists(f"{directory}/copy"):
                os.unlink(f"{directory}/copy")
            pair = ours.run(what, f"{directory}/{file}", *number)
            other = peer()
            if check:
                check()
            if turn > 0:  # the first round touches the memory
                mine.append(pair)
                theirs.append(other)
        size = os.path.getsize(f"{directory}/{file}")
        line = result(mine, theirs)
        print(json.dumps({"what": name, "peer": peer_name, "bytes": size, **line,
                          "ours_gb_per_cpu_s": round(size / line["ours_cpu_s"] / 1e9, 2)}), flush=True)


if __name__ == "__main__":
    main()
