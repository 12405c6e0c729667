#!/usr/bin/env python3
"""Four processes on two mounts write one file (N-1), against a file for each process (N-N).

  cargo build --release && bench/shared.py [--rounds 5] [--size-mib 1024] [--pieces 47008,1048576]

Writer w writes the pieces 4·i + w; every second writer uses the other mount. Each ends with fsync and close. Then four readers read
the data of another writer on the other mount and compare every byte. Both mounts must show the right end of the file. The time runs
from a common start to the end of the last process; rounds of both alternate. Prints JSON lines with medians; a `ratio` above 1 is
faster than N-N. Ends with 1 if a byte is wrong. Needs root.
"""
import argparse
import multiprocessing
import os
import struct
import sys
import time

from local_cluster import BINARY, Cluster
from mount import MIB, Bench

WRITERS = 4
GOAL = 0.8
PATIENCE_S = 300


def pattern(writer, number, size):
    return struct.pack("<II", writer + 1, number) * (size // 8)


class Shape:
    """Returns the place of a piece of a writer: in the common file, or in the writer's own file."""

    def __init__(self, mounts, size, count, one):
        self.mounts, self.size, self.count, self.one = mounts, size, count, one

    def path(self, writer, mount):
        return f"{self.mounts[mount]}/shared" if self.one else f"{self.mounts[mount]}/own{writer}"

    def offset(self, writer, number):
        return (number * WRITERS + writer if self.one else number) * self.size

    def write(self, writer):
        fd = os.open(self.path(writer, writer % 2), os.O_WRONLY | os.O_CREAT, 0o644)
        for number in range(self.count):
            data = pattern(writer, number, self.size)
            if os.pwrite(fd, data, self.offset(writer, number)) != self.size:
                sys.exit(f"writer {writer}: a short write at piece {number}")
        os.fsync(fd)
        os.close(fd)

    def read(self, reader):
        writer = (reader + 1) % WRITERS
        path = self.path(writer, reader % 2)
        fd = os.open(path, os.O_RDONLY)
        for number in range(self.count):
            got = os.pread(fd, self.size, self.offset(writer, number))
            if got != pattern(writer, number, self.size):
                sys.exit(f"{path}: piece {number} of writer {writer}, {self.size} bytes at {self.offset(writer, number)}, "
                         f"read on mount {reader % 2}: {len(got)} bytes, begins with {got[:16].hex()}")
        os.close(fd)
        length = self.size * self.count * (WRITERS if self.one else 1)
        if os.stat(path).st_size != length:
            sys.exit(f"{path}: {os.stat(path).st_size} bytes on mount {reader % 2}, not {length}")

    def remove(self):
        for path in {self.path(writer, 0) for writer in range(WRITERS)}:
            os.unlink(path)
        os.sync()


def together(action):
    """Returns the seconds from a common start until the last of four processes has finished."""
    start = multiprocessing.Barrier(WRITERS + 1)

    def one(number):
        start.wait(PATIENCE_S)
        action(number)

    processes = [multiprocessing.Process(target=one, args=(number,)) for number in range(WRITERS)]
    try:
        for process in processes:
            process.start()
        start.wait(PATIENCE_S)
        begun = time.perf_counter()
        for process in processes:
            process.join(max(0, begun + PATIENCE_S - time.perf_counter()))
        taken = time.perf_counter() - begun
    finally:
        hung = [process for process in processes if process.is_alive()]
        for process in hung:
            process.kill()
    if hung:
        raise SystemExit(f"{len(hung)} processes had not ended after {PATIENCE_S} s")
    if any(process.exitcode for process in processes):
        raise SystemExit(1)
    return taken


def measure(options, mounts, size):
    count = max(1, options.size_mib * MIB // size // WRITERS)
    shapes = {"ours": Shape(mounts, size, count, True), "peer": Shape(mounts, size, count, False)}
    times = {way: {side: [] for side in shapes} for way in ("write", "read back")}
    for _ in range(options.rounds):
        for side, shape in shapes.items():
            times["write"][side].append(together(shape.write))
            times["read back"][side].append(together(shape.read))
            shape.remove()
    for way, taken in times.items():
        Bench.print(f"N-1, {WRITERS} processes on 2 mounts, {way} {size} bytes", "N-N", taken, count * size * WRITERS, 0,
                    GOAL if way == "write" else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024, help="size of all data of a round in MiB")
    parser.add_argument("--pieces", default="47008,1048576", help="sizes of pieces in bytes, multiples of 8")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--dir", help="directory on ext4 (default: the temporary directory)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 64 MiB")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.size_mib = 2, 64
    with Cluster(nodes=options.nodes, cores=1, mount=2, directory=options.dir, binary=options.binary) as cluster:
        for size in map(int, options.pieces.split(",")):
            measure(options, cluster.mount_points, size)


if __name__ == "__main__":
    sys.exit(main())
