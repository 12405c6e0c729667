#!/usr/bin/env python3
"""Latency of reads and writes while kernels run on all cores of the node, against the same without kernels.

  cargo build --release && bench/foreground.py [--rounds 5] [--seconds 3]

Rounds without kernels, with kernels of low priority (the default) and with kernels of normal priority (`--kernels normal`)
alternate. The kernels are `stddev` over 256 MiB in a loop (memory-bound) and a shell loop (never waits), one per core. Requests
use two mounts of the node's host. One mount opens files in place; the other uses HTTP and TLS as a remote client does
(`--in-place false`). The processes of the mounts compete with the kernels for the processors, as on a host that serves both.
Prints JSON lines with medians over rounds of p50 and p99 in microseconds; `ratio` is p99 with kernels to p99 without.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import time

from local_cluster import Cluster, wait

MIB = 1 << 20
FILE_BYTES = 512 * MIB


def read(path, size, seconds):
    taken = []
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        at = random.randrange(FILE_BYTES // size) * size
        # Reads from this mount's own page cache would never ask the node.
        os.posix_fadvise(fd, at, size, os.POSIX_FADV_DONTNEED)
        start = time.perf_counter()
        got = os.pread(fd, size, at)
        taken.append(time.perf_counter() - start)
        assert len(got) == size
        time.sleep(0.001)
    os.close(fd)
    return taken


def write(directory, size, seconds):
    taken = []
    piece = random.randbytes(size)
    path = os.path.join(directory, "scratch")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in range(8):
            start = time.perf_counter()
            os.pwrite(fd, piece, number * size)
            taken.append(time.perf_counter() - start)
            time.sleep(0.001)
        os.close(fd)
    return taken


REQUESTS = [("read", 4096), ("read", MIB), ("write", 4096), ("write", MIB)]


def measure(point, seconds):
    for what, size in REQUESTS:
        if what == "read":
            yield (what, size), read(os.path.join(point, "data"), size, seconds)
        else:
            yield (what, size), write(point, size, seconds)


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


class Side:
    """Cluster whose kernels have one priority, with a mount of each kind."""

    def __init__(self, priority):
        os.environ["TIDEMILL_NODE_KERNELS"] = priority
        self.cluster = Cluster(nodes=1, cores=os.cpu_count(), mount=True)
        self.points = {"in place": self.cluster.mount_point, "http": os.path.join(self.cluster.directory, "remote")}
        os.mkdir(self.points["http"])
        self.cluster._start("remote", "mount", "--path", self.points["http"], "--in-place", "false")
        wait("the mount", lambda: os.path.exists(os.path.join(self.points["http"], ".tidemill")))
        with open(os.path.join(self.cluster.mount_point, "data"), "wb") as file:
            for _ in range(FILE_BYTES // MIB):
                file.write(random.randbytes(MIB))
        with open(os.path.join(self.cluster.mount_point, "half"), "wb") as file:
            file.write(bytes(256 * MIB))
        self.jobs = 0

    def kernels(self, seconds):
        """Starts kernels on all cores that run for longer than `seconds`."""
        self.jobs += 1
        tasks = [f'{{ name = "spin"; kernel = "/bin/sh"; args = ["-c", "while :; do :; done"]; input = ["half"]; '
                 f'output = ["spun{self.jobs}"]; }}']
        tasks += [f'{{ name = "s{n}"; kernel = "stddev"; input = ["half"]; output = ["s{self.jobs}.{n}"]; }}'
                  for n in range(int(seconds * 60))]
        path = os.path.join(self.cluster.directory, "kernels.conf")
        with open(path, "w") as file:
            file.write(f'name = "k"; workdir = "/k"; tasks = ( {", ".join(tasks)} );'.replace('["half"]', '["/half"]'))
        job = self.cluster.json("submit", "--no-cache", path)["job"]
        wait("kernels to run", lambda: self.cluster.json("status")["nodes"][0]["running"] >= min(2, os.cpu_count()))
        return job

    def end(self, job):
        self.cluster.run("job", "cancel", str(job))
        wait("kernels to end", lambda: self.cluster.json("status")["nodes"][0]["running"] == 0)

    def close(self):
        self.cluster.__exit__()
        subprocess.run(["umount", "-l", self.points["http"]], capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds for each kind of request in each round")
    options = parser.parse_args()
    found = {}
    sides = {"idle": Side("idle"), "normal": Side("normal")}
    try:
        for _ in range(options.rounds):
            for way in ("in place", "http"):
                for state, side, busy in [("none", "idle", False), ("idle", "idle", True), ("normal", "normal", True)]:
                    side = sides[side]
                    job = side.kernels(4 * options.seconds + 2) if busy else None
                    for request, taken in measure(side.points[way], options.seconds):
                        found.setdefault((way, *request), {}).setdefault(state, []).append(
                            (percentile(taken, 50), percentile(taken, 99)))
                    if busy:
                        side.end(job)
    finally:
        for side in sides.values():
            side.close()
    for (way, what, size), states in found.items():
        row = {"way": way, "request": what, "bytes": size}
        for state, pairs in states.items():
            for index, name in enumerate(("p50", "p99")):
                row[f"{state}_{name}_us"] = round(statistics.median(pair[index] for pair in pairs) * 1e6, 1)
        for state in ("idle", "normal"):
            row[f"ratio_{state}"] = round(statistics.median(
                busy[1] / none[1] for busy, none in zip(states[state], states["none"])), 2)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
