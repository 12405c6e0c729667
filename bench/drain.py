#!/usr/bin/env python3
"""Drain of a node, against `rsync -a` of its directory on the same disk.

  cargo build --release && bench/drain.py [--files 10000] [--bytes 65536] [--rounds 3]

There are two storage nodes, and all files are on the first. A round takes the time from `tidemill node drain 0` until no
file is left to move (`files_left` is 0), and then the time of rsync for the first node's directory of objects. Removals during the
drain count, later removals do not, as rsync removes nothing. Then `tidemill migrate` transfers the files back. The rate has no limit
(`--migration-rate 0`), and the page cache is warm for both. Prints JSON lines; `ratio` is ours to rsync's in files per second.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BINARY = os.path.join(HERE, "../target/release/tidemill")
# Polling takes time of the measured processors, and rsync is not polled.
PAUSE = 0.1


class Cluster:
    """Server and two nodes in a directory."""

    def __init__(self, directory, binary):
        self.directory, self.binary = directory, binary
        socket = os.path.join(directory, "server/server.sock")
        self.base = [binary, "--server", f"unix:{socket}", "--dir", directory]
        self.processes = []
        self.start("server", "run", "--data-dir", os.path.join(directory, "server"), "--migration-rate", "0")
        self.until(lambda: os.path.exists(socket))
        for node in range(2):
            self.start("node", "run", "--id", str(node), "--data-dir", self.node(node))
        self.until(lambda: self.up() == 2)

    def start(self, *args):
        log = open(os.path.join(self.directory, f"log-{len(self.processes)}"), "w", encoding="utf-8")
        self.processes.append(subprocess.Popen([*self.base, *args], stdout=log, stderr=log))

    def node(self, number):
        return os.path.join(self.directory, f"node-{number}")

    def run(self, *args):
        return subprocess.run([*self.base, *args], check=True, capture_output=True, text=True).stdout

    def json(self, *args):
        return json.loads(self.run("--json", *args))

    def up(self):
        printed = subprocess.run([*self.base, "--json", "status"], capture_output=True, text=True)
        return printed.returncode == 0 and sum(one["up"] for one in json.loads(printed.stdout)["nodes"])

    @staticmethod
    def until(ready):
        while not ready():
            time.sleep(PAUSE)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


def fill(cluster, files, size):
    local = os.path.join(cluster.directory, "local")
    os.makedirs(local)
    for number in range(files):
        with open(os.path.join(local, f"f{number}"), "wb") as out:
            out.write(os.urandom(size))
    cluster.run("mkdir", "/d")
    names = [os.path.join(local, f"f{number}") for number in range(files)]
    for first in range(0, files, 500):
        cluster.run("put", "--node", "0", *names[first : first + 500], "/d/")
    shutil.rmtree(local)


def drained(cluster):
    start = time.perf_counter()
    cluster.run("node", "drain", "0")
    cluster.until(lambda: not left(cluster))
    return time.perf_counter() - start


def left(cluster):
    drain = cluster.json("cluster", "tasks")["drains"][0]
    return drain["files_left"] > 0 or drain["listing"]


def copied(cluster):
    target = os.path.join(cluster.directory, "rsync")
    start = time.perf_counter()
    subprocess.run(["rsync", "-a", cluster.node(0) + "/objects/", target], check=True)
    taken = time.perf_counter() - start
    shutil.rmtree(target)
    return taken


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", default=BINARY)
    parser.add_argument("--dir", help="directory of the cluster (default: in the temporary directory)")
    args = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        cluster = Cluster(directory, os.path.abspath(args.binary))
        try:
            fill(cluster, args.files, args.bytes)
            for number in range(args.rounds):
                theirs, ours = copied(cluster), drained(cluster)
                ratios.append(theirs / ours)
                print(json.dumps({"round": number, "drain_s": ours, "rsync_s": theirs, "ratio": ratios[-1]}), flush=True)
                cluster.until(lambda: cluster.json("cluster", "tasks")["drains"][0]["empty"])
                cluster.run("node", "undrain", "0")
                cluster.run("migrate", "/d", "--node", "0")
                cluster.until(lambda: not cluster.json("cluster", "tasks")["pending"] and not cluster.json("cluster", "tasks")["labels"])
        finally:
            cluster.end()
    result = {"files": args.files, "bytes": args.bytes, "ratio": statistics.median(ratios), "goal": 1.0}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
