#!/usr/bin/env python3
"""`max` over 1 GiB of doubles: in the node, against a copy of the file to /dev/shm and the same kernel there.

  cargo build --release && bench/maximum.py [--gib 1] [--rounds 5]

Both ways start from the file in the cluster with its pages cached. Prints JSON lines with times and the bytes that left the node.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

from local_cluster import Cluster, BINARY


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    size = int(options.gib * (1 << 30)) // 8 * 8
    with Cluster(nodes=1, cores=1, mount=True) as cluster, open("/dev/urandom", "rb") as chance:
        path = f"{cluster.mount_point}/data"
        with open(path, "wb") as file:
            piece = b"".join(b"%c\0\0\0\0\0\xf0\x3f" % byte for byte in chance.read(1 << 17))
            for start in range(0, size, len(piece)):
                file.write(piece[:size - start])
        inside, outside, results, kernel_s = [], [], set(), []
        for number in range(options.rounds):
            start = time.perf_counter()
            job = cluster.submit(f'name = "max"; workdir = "/"; tasks = ( {{ name = "m"; kernel = "max"; '
                               f'input = ["data"]; output = ["max{number}"]; }} );')
            inside.append(time.perf_counter() - start)
            assert job["state"] == "done", job
            task = job["tasks"][0]
            kernel_s.append((task["end"] - task["kernel_start"]) / 1e9)
            results.add(open(f"{cluster.mount_point}/max{number}").read().strip())
            written = task["written_bytes"]
            start = time.perf_counter()
            subprocess.run(["cp", path, "/dev/shm/tidemill-max"], check=True)
            done = subprocess.run([BINARY, "--quiet", "kernel", "test", "max", "/dev/shm/tidemill-max"],
                                  capture_output=True, text=True)
            outside.append(time.perf_counter() - start)
            os.unlink("/dev/shm/tidemill-max")
            if done.returncode != 0:
                raise SystemExit(f"the kernel failed on the copy: {done.stderr}")
            results.add(done.stdout.strip())
        assert len(results) == 1, results
        print(json.dumps({"what": "max over a file", "bytes": size, "inside_s": round(statistics.median(inside), 3),
                          "kernel_s": round(statistics.median(kernel_s), 3),
                          "copy_out_s": round(statistics.median(outside), 3),
                          "ratio": round(statistics.median(o / i for i, o in zip(inside, outside)), 2),
                          "bytes_left_inside": written, "bytes_left_copy_out": size}))


if __name__ == "__main__":
    main()
