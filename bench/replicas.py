#!/usr/bin/env python3
"""Effect of background replicas on a writer: directories with two replicas against directories with one.

  cargo build --release && bench/replicas.py [--rounds 5] [--large 64] [--small 5000] [--only local,links]

The writer uses the mount. It writes 64 files of 16 MiB in writes of 1 MiB, and then small files of 4 KiB, each closed before
the next one begins. The time ends at the last close. `local`: four nodes on this host, whose disk and processors are shared
by replicas and writer. `links`: client, server and nodes have their own hosts and links (the testbed's, 1 Gbit/s). Rounds of both
alternate, and each round begins when no replica and no removal runs. Prints JSON lines with medians. A `ratio` above 1 is faster than
one replica; `copied_s` is the time from the last close until all replicas exist. Needs root.
"""
import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]
import testbed  # noqa: E402
from local_cluster import BINARY, Cluster  # noqa: E402
from mount import MIB, Bench, create, timed, write  # noqa: E402

GOAL = 0.9
LARGE_BYTES = 16 * MIB
PATIENCE_S = 600
# Number of files of a round whose replicas are checked.
LOOKED_AT = 5


def quiet(ask):
    """Waits until all replicas and removals are done."""
    end = time.monotonic() + PATIENCE_S
    while True:
        labels = ask("cluster", "tasks")
        if not (ask("status")["replicas"]["short"] or labels["pending"] or labels["labels"]):
            return
        if time.monotonic() > end:
            raise SystemExit(f"replicas or removals are still under way after {PATIENCE_S} s: {labels}")
        time.sleep(0.05)


def have_two(ask, directory):
    for name in os.listdir(directory)[:LOOKED_AT]:
        replicas = ask("stat", f"/two/{name}")["parts"][0]["replicas"]
        if [replica["state"] for replica in replicas] != ["current"] * 2:
            raise SystemExit(f"/two/{name}: {replicas}")


def measure(options, label, mount_point, ask):
    kinds = {"large": (lambda directory: [write(f"{directory}/{number}", LARGE_BYTES, MIB) for number in range(options.large)],
                       options.large * LARGE_BYTES, 0, f"{options.large} files of 16 MiB"),
             "small": (lambda directory: create(directory, options.small), 0, options.small, f"{options.small} files of 4 KiB")}
    times = {kind: {"ours": [], "peer": []} for kind in kinds}
    copied = {kind: [] for kind in kinds}
    directories = {"ours": f"{mount_point}/two", "peer": f"{mount_point}/one"}
    for _ in range(options.rounds):
        for kind, (action, *_) in kinds.items():
            for side, directory in directories.items():
                os.mkdir(directory)
                os.setxattr(directory, "user.tidemill.replicas", b"2" if side == "ours" else b"1")
                quiet(ask)
                times[kind][side].append(timed(lambda: action(directory)))
                after = timed(lambda: quiet(ask))
                if side == "ours":
                    copied[kind].append(after)
                    have_two(ask, directory)
                shutil.rmtree(directory)
                os.sync()
    for kind, (_, size, operations, what) in kinds.items():
        Bench.print(f"2 replicas, {label}, {what}", "1 replica", times[kind], size, operations, GOAL,
                    copied_s=round(statistics.median(copied[kind]), 2))


def local(options):
    with Cluster(nodes=options.nodes, cores=1, mount=True, directory=options.dir, binary=options.binary) as cluster:
        measure(options, "one host", cluster.mount_point, cluster.json)


def links(options):
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        cluster = testbed.Cluster(options, f"{directory}/cluster")
        try:
            cluster.mount()
            measure(options, f"links of {options.rate_mbit} Mbit/s", cluster.mount_point, cluster.ask)
        finally:
            cluster.remove()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=64)
    parser.add_argument("--small", type=int, default=5000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--only", default="local,links")
    parser.add_argument("--dir", help="directory on ext4 (default: the temporary directory)")
    parser.add_argument("--quick", action="store_true", help="1 round of 4 and 100 files, on one host only")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.large, options.small, options.only = 1, 4, 100, "local"
    options.client_cores = options.server_cores = options.node_cores = os.cpu_count()
    for part in options.only.split(","):
        {"local": local, "links": links}[part](options)


if __name__ == "__main__":
    sys.exit(main())
