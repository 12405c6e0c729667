#!/usr/bin/env python3
"""The burst tier, and the experiments of Active Burst-Buffer (§IV).

  cargo build --release -p tidemill-cli && bench/burst.py [write] [shared] [stage-out] [hooks] [links] [abb] [sizes] [--rounds 3] [--size-mib 256] [--out DIRECTORY]

`write`: one program writes a file of --size-mib MiB in writes of 1 MiB, in place through the mount, into a node of the tier. The peer is ext4 on the same disk.
`shared`: four programs on two mounts write one file (N-1) into four nodes of the tier. The peer is a file for each program (N-N).
`stage-out`: the client writes --size-mib MiB to nodes of the capacity tier, each with a link of --rate-mbit (250 by default). `seen` is the time with a node of the tier on its host,
`stored` the time until the data is staged out. The peer is the same without the tier.
`hooks`: --ranks programs on this machine write --size-mib MiB together, in place into a node of the tier, with a hook on all files, or without (`peer`). Rounds alternate on
one cluster, and each round begins after all maps of the previous round have ended.
`links`: N-1 of four programs on four hosts, each with a node of the tier and a link of --host-mbit (1000). The programs write pieces of 1 MiB in turn and end with fsync. The
peer is N-N. Then each program reads the data of another program.

`abb` (Figs. 6 to 10): --bursts hosts (1) with links of --host-mbit have as many programs each as --ratios says (8,16,32). The programs write --size-mib MiB of doubles together, in
--patterns (N-N,N-m,N-1; m: one file for four programs), and one of --kernels (max,average,filter) is computed. The ways are:

  ABB         hooks on nodes of the tier; only results remain; maps of max and average are reduced to one result
  BB+ANALY    the kernel on the same hosts, with cold mounts, after all data is staged out from the tier to nodes of the capacity tier
  PFS+ANALY   the same, but the programs write to nodes of the capacity tier
  IOF+ANALY   the programs write through a node of the tier on its own host, and have written when that is staged out; this system has no forwarder that
              blocks its writers, and this imitates the waits of programs for one

Nodes of the capacity tier imitate the parallel file system: --nodes (1) with links of --pfs-mbit (500); several of them have whole files. Nodes of the tier are on the hosts of their
programs, or with --place apart on their own hosts, as in the paper; then files of several hosts can be on one of them. IOR is not available: `ranks.py` writes as IOR does. Results of
ABB are compared with the expected values. Seconds end at the last result; those of `write` end when the last program has closed its file; `stage_out` and `analysis` follow. `link_bytes`
are the bytes on the links of nodes of the capacity tier, results included. `overhead` is the time that hooks add to `write`. `reading` is the share of a whole task by which analysis takes
longer than a second analysis with cached data. `sizes` (Figs. 11 and 12) measures these two for --sizes MiB (64,128,256). --out writes the figures.

Rounds alternate, except in `abb` and `sizes`, which run each way on its own cluster. Prints JSON lines with medians. `ratio` is the time divided by the peer's time, so below 1 is
faster; for `write`, `shared`, `hooks` and `links` it is the speed divided by the peer's speed. Needs root.
"""
import argparse
import array as numbers
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import abb
import local_cluster
import shared
from dscal import MIB, parser_of, testbed
from mount import Bench, write as write_file

GOALS = {"write": 0.9, "shared": 0.9, "hooks": 0.9}
# A thousandth of the values is above this bound.
KERNELS = {"max": "max dtype=f64", "average": "mean dtype=f64", "filter": "filter dtype=f64 above=999 out=raw"}


class Local(local_cluster.Cluster):
    """Nodes of the tier and one node of the capacity tier, on this machine."""

    def __init__(self, bursts, options, mounts):
        self.bursts = bursts
        super().__init__(nodes=1 + bursts, mount=mounts, directory=options.dir, binary=options.binary)

    def _start(self, name, *args):
        tier = ("--tier", "burst") if name.startswith("node") and name != "node0" else ()
        super()._start(name, *args, *tier)


def write(options):
    with Local(1, options, 1) as cluster:
        size, times = options.size_mib * MIB, {"ours": [], "peer": []}
        places = {"ours": f"{cluster.mount_point}/f", "peer": f"{cluster.directory}/f"}
        for _ in range(options.rounds + 1):
            for side, path in places.items():
                os.sync()
                begun = time.perf_counter()
                write_file(path, size, MIB)
                times[side].append(time.perf_counter() - begun)
                os.unlink(path)
        times = {side: taken[1:] for side, taken in times.items()}
        Bench.print("write in place into the burst tier, pieces of 1 MiB", "ext4", times, size, 0, GOALS["write"])


def together(options):
    with Local(4, options, 2) as cluster:
        shared.GOAL = GOALS["shared"]
        shared.measure(options, cluster.mount_points, MIB)


class Linked:
    """Nodes of the capacity tier, with slow links, and optionally a node of the tier on the client's host."""

    def __init__(self, options, directory, tier):
        self.options, self.directory, self.tier = options, directory, tier
        self.cluster = testbed.Cluster(options, f"{directory}/cluster", server_flags=("--stage-out-after", options.stage_out_after))
        try:
            if tier:
                node = os.path.join(directory, "cluster", "burst")
                number = len(self.cluster.nodes)
                self.cluster.client.start(*self.cluster.program, "node", "run", "--id", str(number), "--tier", "burst", "--data-dir", node, "--listen",
                                        f"{self.cluster.client.address}:0", "--cores", "2", log=os.path.join(directory, "burst.log"))
                up = lambda: sum(e["up"] for e in self.cluster.ask("status")["nodes"]) >= number + 2
                testbed.wait("the node of the tier", up)
            self.cluster.mount()
        except BaseException:
            self.cluster.remove()
            raise

    def __enter__(self):
        return self.cluster

    def __exit__(self, *_):
        self.cluster.remove()


def at(cluster, *path):
    return os.path.join(cluster.mount_point, *path)


def stored(cluster):
    cluster.tidemill("stage", "out", "/", "--wait")


def stage_out(options):
    times = {"seen": [], "stored": [], "peer": []}
    for _ in range(options.rounds):
        for tier in (True, False):
            with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory, Linked(options, directory, tier) as cluster:
                begun = time.perf_counter()
                cluster.client.call("sh", "-c", f"dd if=/dev/zero of={at(cluster, 'f')} bs=1M count={options.size_mib} status=none")
                seen = time.perf_counter() - begun
                cluster.client.call("sync", at(cluster, "f"))
                stored(cluster)
                whole = time.perf_counter() - begun
                times["seen" if tier else "peer"].append(seen if tier else whole)
                if tier:
                    times["stored"].append(whole)
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    print(json.dumps({"what": f"{options.size_mib} MiB to nodes behind {options.rate_mbit} Mbit/s", "peer": "without the tier",
                      "seen_s": round(middle["seen"], 3), "stored_s": round(middle["stored"], 2), "peer_s": round(middle["peer"], 2),
                      "ratio": round(middle["seen"] / middle["peer"], 4), "ratio_stored": round(middle["stored"] / middle["peer"], 3)}), flush=True)


def written(start, source, directory, number):
    """Runs all programs at once, and returns the seconds until the last program has closed its file."""
    begun = time.perf_counter()
    writers = [start(["dd", f"if={source}{rank}", f"of={directory}/{rank}.f64", "bs=1M", "status=none"]) for rank in range(number)]
    if any([writer.wait() for writer in writers]):
        raise SystemExit("a program could not write")
    return time.perf_counter() - begun


def sources(options, directory):
    """Returns the data of a program: doubles below 1000, the same in each MiB."""
    source, chance = os.path.join(directory, "source"), random.Random(1)
    pieces = options.size_mib // options.ranks
    for rank in range(options.ranks):
        with open(f"{source}{rank}", "wb") as file:
            piece = numbers.array("d", (chance.uniform(0, 1000) for _ in range(MIB // 8)))
            for _ in range(pieces):
                piece.tofile(file)
    return source, pieces * MIB // 8


def hooks(options):
    with Local(1, options, 1) as cluster, tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        source, size = sources(options, directory)
        for what, kernel in KERNELS.items():
            times = {"ours": [], "peer": []}
            for turn in range(options.rounds + 1):
                for side in times:
                    place = os.path.join(cluster.mount_point, f"{what}-{side}-{turn}")
                    os.mkdir(place)
                    if side == "ours":
                        cluster.tidemill("rule", "create", f"/{what}-{side}-{turn}/*.f64", "--map", kernel, "--result", "out/{stem}", "--on", "write",
                                       "--name", "bench")
                    os.sync()
                    times[side].append(written(subprocess.Popen, source, place, options.ranks))
                    if side == "ours":
                        results = [os.path.join(place, "out", str(rank)) for rank in range(options.ranks)]
                        local_cluster.wait("the results", lambda: all(map(os.path.exists, results)), 600)
                        cluster.tidemill("rule", "delete", "bench")
                    shutil.rmtree(place)
            times = {side: taken[1:] for side, taken in times.items()}
            Bench.print(f"write seen by {options.ranks} programs, hook {what}", "no hook", times, size * 8 * options.ranks, 0, GOALS["hooks"])


def main():
    parser = parser_of(__doc__, 3)
    parser.set_defaults(nodes=None, rate_mbit=250, node_cores=1.0, client_cores=2.0)
    whats = {"write": write, "shared": together, "stage-out": stage_out, "hooks": hooks, "links": abb.together, "abb": abb.whole_tasks, "sizes": abb.sizes}
    parser.add_argument("what", nargs="*", default=list(whats))
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--stage-out-after", default="30s")
    for name, default in (("ratios", "8,16,32"), ("patterns", "N-N,N-m,N-1"), ("kernels", ",".join(abb.KERNELS)), ("ways", ",".join(abb.WAYS)), ("sizes", "64,128,256")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--bursts", type=int, default=1)
    parser.add_argument("--place", choices=("near", "apart"), default="near")
    parser.add_argument("--host-mbit", type=int, default=1000)
    parser.add_argument("--pfs-mbit", type=int, default=500)
    options = parser.parse_args()
    for what in options.what:
        mine = argparse.Namespace(**vars(options))
        mine.nodes = int(options.nodes or (2 if what == "stage-out" else 1))
        whats[what](mine)


if __name__ == "__main__":
    sys.exit(main())
