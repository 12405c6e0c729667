#!/usr/bin/env python3
"""Two versions of a source tree are staged out to an external store as `dedup | zstd`, against `restic backup` of the same trees.

  cargo build --release && bench/packs.py TREE TREE [--files 20000] [--as "dedup | zstd"] [--restic restic]

A node of the burst tier takes both trees in turn through the mount. They are staged out to a node whose files are in a directory. Our
bytes are those of that directory; restic's bytes are those of its repository, with compression by default. Both are on the same disk.
The ratio compares bytes. Seconds are also printed: ours start with the stage-out, as the files are in the cluster by then. `--files`
selects the first files of each tree, by name. `--binary` may be a debug build, with the same bytes. Prints JSON lines; `ratio` is
ours to restic's.
"""
import argparse
import json
import os
import shutil
import subprocess
import tempfile
import time

import local_cluster
from local_cluster import Cluster, wait


class Packed(Cluster):
    """Cluster with node 0 of the burst tier, and node 1 with its files in an external store."""

    def __init__(self, backend, steps, **more):
        self.backend, self.steps = backend, steps
        super().__init__(nodes=0, **more)

    def _start_all(self, nodes, cores, mount):
        super()._start_all(nodes, cores, mount=False)
        tiers = ["--tier", "burst"], ["--backend", f"file://{self.backend}", "--backend-format", self.steps]
        for number, more in enumerate(tiers):
            self._start(f"node{number}", "node", "run", "--id", str(number), "--data-dir", f"{self.directory}/node{number}",
                        "--listen", "127.0.0.1:0", *more)
        wait("the nodes", lambda: sum(one["up"] for one in self.json("status")["nodes"]) == len(tiers))
        os.mkdir(self.mount_point)
        self._start("mnt", "mount", "--path", self.mount_point)
        wait("the mount", lambda: os.path.exists(os.path.join(self.mount_point, ".tidemill")))

    def reported(self):
        return self.json("status")["nodes"][1]["backend"]


def bytes_below(directory):
    sizes = (os.lstat(os.path.join(above, name)).st_size for above, _, names in os.walk(directory) for name in names)
    return sum(sizes)


def chosen(tree, files, into):
    """Makes a tree of the first files, as hard links."""
    paths = sorted(os.path.relpath(os.path.join(above, name), tree) for above, _, names in os.walk(tree) for name in names
                   if os.path.isfile(os.path.join(above, name)) and not os.path.islink(os.path.join(above, name)))
    for path in paths[:files]:
        to = os.path.join(into, path)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.link(os.path.join(tree, path), to)


def ours(args, directory, trees):
    backend = os.path.join(directory, "backend")
    os.mkdir(backend)
    with Packed(backend, args.steps, directory=directory, binary=args.binary) as cluster:
        for number, tree in enumerate(trees):
            to = os.path.join(cluster.mount_point, f"tree{number}")
            subprocess.run(["cp", "-r", "--no-preserve=mode", tree, to], check=True)
            start = time.monotonic()
            files = sum(len(names) for _, _, names in os.walk(tree))
            while cluster.reported()["objects"] < files * (number + 1) - args.empty[number]:
                cluster.run("stage", "out", "/", "--wait")
            seconds = time.monotonic() - start
            reported = cluster.reported()
            yield reported["bytes"], bytes_below(backend), seconds


def restics(args, directory, trees):
    repository = os.path.join(directory, "restic")
    environment = {**os.environ, "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": repository,
                   "RESTIC_CACHE_DIR": os.path.join(directory, "cache")}
    version = ["--repository-version", "2"]
    subprocess.run([args.restic, "init", *version], check=True, env=environment, capture_output=True)
    for tree in trees:
        start = time.monotonic()
        subprocess.run([args.restic, "backup", "."], check=True, env=environment, capture_output=True, cwd=tree)
        yield bytes_below(repository), time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2)
    parser.add_argument("--files", type=int)
    parser.add_argument("--as", dest="steps", default="dedup | zstd")
    parser.add_argument("--restic", default="restic")
    parser.add_argument("--binary", default=local_cluster.BINARY)
    parser.add_argument("--dir", help="directory for all data, on the disk of the trees [default: that of the first tree]")
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="tidemill-packs-", dir=args.dir or os.path.dirname(os.path.abspath(args.trees[0])))
    try:
        trees = []
        for number, tree in enumerate(args.trees):
            trees.append(os.path.join(directory, f"from{number}"))
            chosen(tree, args.files, trees[-1])
        # Empty files have no object.
        args.empty = [sum(os.path.getsize(os.path.join(above, name)) == 0 for above, _, names in os.walk(tree) for name in names)
                      for tree in trees]
        for (plain, sent, seconds), (theirs, their_seconds) in zip(ours(args, directory, trees), restics(args, directory, trees)):
            print(json.dumps({"bench": "packs", "as": args.steps, "bytes": plain, "sent": sent, "restic": theirs,
                              "ratio": round(sent / theirs, 3), "seconds": round(seconds, 1),
                              "restic_seconds": round(their_seconds, 1)}), flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
