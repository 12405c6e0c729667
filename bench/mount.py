#!/usr/bin/env python3
"""The mount against the ext4 below it, and against a do-nothing loopback on the same FUSE library.

  cargo build --release && bench/mount.py [--rounds 5] [--size-mib 1024] [--files 20000] [--only read,write,…]

All measurements are in one run, in which rounds of ours and the peers alternate. Prints one JSON line for each measurement, with the
medians and the median ratio (ours to the peer; above 1 is faster). Data is warm in the page cache. Needs root.

`limit` is the ratio of the loopback to ext4 in the same rounds. The loopback passes all requests to the kernel, so no FUSE file
system is faster by more than noise.
"""
import argparse
import json
import os
import random
import statistics
import sys
import time

from local_cluster import Cluster, Loopback

MIB = 1 << 20


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def write(path, total, piece, before_close=lambda fd: None):
    data = memoryview(bytearray(os.urandom(MIB)) * max(1, piece // MIB))[:piece]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    for _ in range(total // piece):
        os.write(fd, data)
    before_close(fd)
    os.close(fd)


def read(path, piece):
    buffer = bytearray(piece)
    fd = os.open(path, os.O_RDONLY)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)


def random_read(path, size, count):
    chance = random.Random(7)
    fd = os.open(path, os.O_RDONLY)
    for _ in range(count):
        os.pread(fd, 4096, chance.randrange(size // 4096) * 4096)
    os.close(fd)


def create(directory, count):
    for number in range(count):
        fd = os.open(f"{directory}/{number:06}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, b"x" * 4096)
        os.close(fd)


def open_read_close(directory, count):
    for number in range(count):
        fd = os.open(f"{directory}/{number:06}", os.O_RDONLY)
        os.read(fd, 8192)
        os.close(fd)


def stat(directory, count):
    for number in range(count):
        os.stat(f"{directory}/{number:06}")


def list_and_stat(directory):
    with os.scandir(directory) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)


def unlink(directory, count):
    for number in range(count):
        os.unlink(f"{directory}/{number:06}")


class Bench:
    def __init__(self, options, ours, ext4, loopback):
        self.options, self.ours, self.ext4, self.loopback = options, ours, ext4, loopback

    def pair(self, name, ours, peer, limit=None, unit_bytes=0, operations=0, goal=0.0, between=lambda: None,
             peer_name="ext4"):
        actions = {"ours": ours, "peer": peer} | ({"limit": limit} if limit else {})
        times = {side: [] for side in actions}
        for action in actions.values():
            action()  # warm
        for _ in range(self.options.rounds):
            for side, action in actions.items():
                between()
                times[side].append(timed(action))
        self.print(name, peer_name, times, unit_bytes, operations, goal)

    @staticmethod
    def print(name, peer_name, times, unit_bytes, operations, goal, **more):
        ours, peer = (statistics.median(times[side]) for side in ("ours", "peer"))
        ratio = statistics.median(p / o for o, p in zip(times["ours"], times["peer"]))
        line = {"what": name, "peer": peer_name, "ratio": round(ratio, 3), "goal": goal,
                "met": None if goal is None else ratio >= goal, "ours_s": round(ours, 4), "peer_s": round(peer, 4)}
        if "limit" in times:
            line["limit"] = round(statistics.median(p / l for l, p in zip(times["limit"], times["peer"])), 3)
        if unit_bytes:
            line |= {"ours_GBps": round(unit_bytes / ours / 1e9, 2), "peer_GBps": round(unit_bytes / peer / 1e9, 2)}
        if operations:
            line |= {"ours_per_s": round(operations / ours), "peer_per_s": round(operations / peer)}
        print(json.dumps(line | more), flush=True)

    def large(self):
        size = self.options.size_mib * MIB
        ours, ext4, limit = f"{self.ours}/large", f"{self.ext4}/large", f"{self.loopback}/large"
        for piece, label in ((MIB, "1 MiB"), (128 << 10, "128 KiB")):
            def fresh():
                for path in (ours, ext4):
                    if os.path.exists(path):
                        os.unlink(path)
                os.sync()
            self.pair(f"write {label}", lambda: write(ours, size, piece), lambda: write(ext4, size, piece),
                      unit_bytes=size, goal=0.85, between=fresh)
        for path in (ours, ext4):
            if os.path.exists(path):
                os.unlink(path)
            write(path, size, MIB)
        for piece, label in ((MIB, "1 MiB"), (128 << 10, "128 KiB")):
            self.pair(f"read {label}", lambda: read(ours, piece), lambda: read(ext4, piece), lambda: read(limit, piece),
                      size, goal=0.9)
        count = 50_000
        self.pair("random read 4 KiB", lambda: random_read(ours, size, count), lambda: random_read(ext4, size, count),
                  lambda: random_read(limit, size, count), operations=count, goal=0.8)
        os.unlink(ours), os.unlink(ext4)

    def small(self):
        count = self.options.files
        actions = {"create+write 4 KiB+close": (create, 0.6), "open+read+close": (open_read_close, 0.6),
                   "unlink": (unlink, 0.6)}
        times = {name: {"ours": [], "peer": []} for name in actions}
        for number in range(self.options.rounds):
            directories = {"ours": f"{self.ours}/small{number}", "peer": f"{self.loopback}/small{number}"}
            for directory in directories.values():
                os.mkdir(directory)
            for name, (action, _) in actions.items():
                for side, directory in directories.items():
                    times[name][side].append(timed(lambda: action(directory, count)))
                    time.sleep(0.5)
        for name, (_, goal) in actions.items():
            self.print(name, "loopback", times[name], 0, count, goal)

    def metadata(self):
        count = min(self.options.files, 5000)
        ours, ext4, limit = f"{self.ours}/meta", f"{self.ext4}/meta", f"{self.loopback}/meta"
        for directory in (ours, ext4):
            os.mkdir(directory)
            create(directory, count)
        time.sleep(2)
        self.pair("stat, cached", lambda: stat(ours, count), lambda: stat(ext4, count), lambda: stat(limit, count),
                  operations=count, goal=0.9)
        self.pair("readdir+stat, cached", lambda: list_and_stat(ours), lambda: list_and_stat(ext4),
                  lambda: list_and_stat(limit), operations=count, goal=0.25)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--only", default="large,small,metadata")
    parser.add_argument("--dir", default=None, help="directory on ext4 (default: the temporary directory)")
    options = parser.parse_args()
    with Cluster(nodes=1, cores=1, mount=True, directory=options.dir) as cluster, Loopback(directory=options.dir) as peer:
        bench = Bench(options, cluster.mount_point, peer.source, peer.point)
        for part in options.only.split(","):
            getattr(bench, part)()


if __name__ == "__main__":
    sys.exit(main())
