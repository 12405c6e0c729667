#!/usr/bin/env python3
"""Data from one program to another on one host: by labels, and as files in memory through the mount, against Redis over a Unix socket.

  cargo build --release --locked -p tidemill-cli -p tidemill-label && bench/workspace.py [--rounds 3] [--binary target/release/tidemill]

`put`: `put` and `get` of labels, into files in memory, of 4 KiB and 1 MiB (workspace.c, which also implements the peer's protocol). The other measurements are in Python, with two processes
that take turns by a pipe. One process writes a file (or calls SET), and the other reads the file as soon as it is closed (or calls GET).
`small`: the time from before the put to after the get, with 4 KiB, p50 of all turns. `large`: bytes per second with 1 MiB. `mapped`: the same, with a reader that maps the file and sums
it; the peer's reader sums the bytes of GET. The script implements the peer's protocol itself, so that no client library counts.
Rounds alternate; ratios are those of medians. Prints JSON lines. Needs root and redis-server.
"""
import argparse
import json
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

from ends import undisturbed
from local_cluster import BINARY, HERE, Cluster, wait


class Files:
    def __init__(self, cluster, name="workspace"):
        self.directory = os.path.join(cluster.mount_point, name)
        os.mkdir(self.directory)
        os.setxattr(self.directory, "user.tidemill.tier", b"memory")

    def path(self, key):
        return os.path.join(self.directory, str(key))

    def put(self, key, value):
        file = os.open(self.path(key), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, value)
        os.close(file)

    def get(self, key, size, mapped):
        file = os.open(self.path(key), os.O_RDONLY)
        if mapped:
            with mmap.mmap(file, size, prot=mmap.PROT_READ) as pages:
                took = touched(pages)
        else:
            took = len(os.read(file, size))
        os.close(file)
        return took

    def connect(self):
        return self

    def drop(self, key):
        os.unlink(self.path(key))


class Redis:
    """Client with the needed commands of the peer's protocol."""

    def __init__(self, path):
        self.path = path

    def connect(self):
        peer = Redis(self.path)
        peer.socket = socket.socket(socket.AF_UNIX)
        peer.socket.connect(self.path)
        peer.buffer = bytearray(4 << 20)
        return peer

    def put(self, key, value):
        key = str(key).encode()
        self.socket.sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(value)) + value + b"\r\n")
        assert self.socket.recv(5) == b"+OK\r\n"

    def get(self, key, size, mapped):
        key = str(key).encode()
        self.socket.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
        whole, view, have = len(b"$%d\r\n" % size) + size + 2, memoryview(self.buffer), 0
        while have < whole:
            have += self.socket.recv_into(view[have:])
        return touched(view[:size]) if mapped else size

    def drop(self, key):
        key = str(key).encode()
        self.socket.sendall(b"*2\r\n$3\r\nDEL\r\n$%d\r\n%s\r\n" % (len(key), key))
        assert self.socket.recv(4) == b":1\r\n"


def library(cluster, binary, sizes, redis, rounds):
    """Measures labels and the peer, both from C."""
    target = os.path.dirname(os.path.abspath(binary))
    program = os.path.join(cluster.directory, "workspace-bench")
    subprocess.run(["cc", "-O2", "-o", program, f"{HERE}/workspace.c", f"-L{target}", "-ltidemill_label", f"-Wl,-rpath,{target}"], check=True)
    logs = tempfile.mkdtemp(prefix="tidemill-bench-", dir="/dev/shm")
    env = dict(os.environ, TIDEMILL_LABELS=logs, TIDEMILL=os.path.abspath(binary))
    directory = Files(cluster, "put").directory
    try:
        for size, turns in sizes:
            times = {"labels": [], "redis": []}
            for _ in range(rounds):
                for side, place in [("labels", directory), ("redis", redis)]:
                    printed = subprocess.run([program, side, place, str(size), str(turns)], env=env, check=True, capture_output=True, text=True).stdout
                    times[side] += [float(line) / 1e6 for line in printed.split()]
            report("put", size, statistics.median(times["labels"]), statistics.median(times["redis"]))
    finally:
        with open(f"{logs}/agent.lock") as lock:
            os.kill(int(lock.read()), 9)
        shutil.rmtree(logs)


def touched(view):
    """Reads every page."""
    return sum(view[at] >= 0 for at in range(0, len(view), 4096)) * 4096


def reader(store, turns, size, mapped, keys, answers):
    store = store.connect()
    for _ in range(turns):
        key = int.from_bytes(os.read(keys, 8), "little")
        assert store.get(key, size, mapped) == size
        os.write(answers, b"!")
    os._exit(0)


def take_turns(store, size, count, mapped, first):
    """Returns the seconds of each put and get."""
    keys, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        reader(store, count, size, mapped, keys[0], answers[1])
    store, value, times = store.connect(), os.urandom(size), []
    for key in range(first, first + count):
        began = time.perf_counter()
        store.put(key, value)
        os.write(keys[1], key.to_bytes(8, "little"))
        os.read(answers[0], 1)
        times.append(time.perf_counter() - began)
    assert os.waitpid(child, 0)[1] == 0
    for key in range(first, first + count):
        store.drop(key)
    for end in (*keys, *answers):
        os.close(end)
    return times


def compare(name, stores, size, count, rounds, mapped=False):
    times = {which: [] for which in stores}
    for turn in range(rounds):
        for which, store in stores.items():
            times[which].append(statistics.median(take_turns(store, size, count, mapped, turn * count)))
    ours, peer = (statistics.median(times[which]) for which in ("files", "redis"))
    report(name, size, ours, peer)


def report(name, size, ours, peer):
    print(json.dumps({"bench": name, "bytes": size, "us": round_to(ours * 1e6), "redis_us": round_to(peer * 1e6),
                      "mb_per_s": round_to(size / ours / 1e6), "redis_mb_per_s": round_to(size / peer / 1e6),
                      "time_to_redis": round(ours / peer, 3)}), flush=True)


def round_to(number):
    return round(number, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", default=BINARY)
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="tidemill-bench-redis-")
    path = f"{directory}/socket"
    redis = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"],
                             stdout=subprocess.DEVNULL, cwd=directory)
    try:
        with Cluster(nodes=1, mount=0, binary=args.binary) as cluster:
            memory = f"{cluster.directory}/memory"
            try:
                cluster._start("memory", "node", "run", "--id", "9", "--data-dir", memory, "--listen", "127.0.0.1:0",
                             "--tier", "memory", "--capacity", "1GiB")
                wait("memory", lambda: sum(e["up"] for e in cluster.json("status")["nodes"]) == 2)
                os.mkdir(cluster.mount_point)
                cluster._start("mnt", "mount", "--path", cluster.mount_point)
                wait("the mount", lambda: os.path.exists(os.path.join(cluster.mount_point, ".tidemill")))
                wait("the peer", lambda: os.path.exists(path))
                library(cluster, args.binary, [(4096, 2000), (1 << 20, 300)], path, args.rounds)
                stores = {"files": Files(cluster), "redis": Redis(path)}
                compare("small", stores, 4096, 500, args.rounds)
                compare("large", stores, 1 << 20, 100, args.rounds)
                compare("mapped", stores, 1 << 20, 100, args.rounds, mapped=True)
            finally:
                with undisturbed():
                    subprocess.run(["umount", "-l", memory], capture_output=True)
    finally:
        with undisturbed():
            redis.terminate()
            redis.wait()
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
