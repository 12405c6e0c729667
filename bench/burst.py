#!/usr/bin/env python3
"""The burst tier, and the experiments of Active Burst-Buffer (§IV).

  cargo build --release -p tidemill-cli && bench/burst.py [write] [shared] [drain] [hooks] [links] [abb] [sizes] [--rounds 3] [--size-mib 256] [--out FOLDER]

`write`: one program writes a file of --size-mib MiB in pieces of 1 MiB, in place through the mount, into an element of the tier, against ext4 beside it. `shared`: four programs on
two mounts write one file (N-1) into four elements of the tier, against a file each (N-N). `drain`: the client writes --size-mib MiB to elements that store, each behind a link of --rate-mbit
(250 by default); `seen` with an element of the tier on its host, `stored` when that has drained; against the same without the tier. `hooks`: --ranks programs on this machine
write --size-mib MiB together, in place into an element of the tier, with a hook on all that is written and without (`peer`); rounds alternate on one array, and each begins when all maps
of the one before have ended. `links`: N-1 of four programs on four hosts, each with an element of the tier and a link of --host-mbit (1000), each program a piece of 1 MiB in turn, ending with fsync,
against N-N; then each reads what another one wrote.

`abb` (Figs. 6 to 10): on hosts with links of --host-mbit, --bursts of them (1) with as many programs each as --ratios says (8,16,32) write --size-mib MiB of doubles together, in --patterns (N-N,N-m,N-1; m: one
file for four programs), of which one of --kernels (max,average,filter) is wanted. ABB: by hooks on elements of the tier, of which only results stay; maps of max and average are reduced to one. BB+ANALY: by the kernel on
the same hosts, with cold mounts, after all has drained from the tier to what stores. PFS+ANALY: the same, written there at once. IOF+ANALY: through an element of the tier on a host of its own, and written when that has
passed it on: this system has no forwarder that holds up its writers, and this is what programs would wait for one. What stores stands for the parallel file system: --elements (1) behind links of --pfs-mbit (500); of several, each has whole
files. Elements of the tier are beside their programs, or with --place apart on hosts of their own, as in the paper (files of several hosts then lie on one of them). IOR is not to be had: `ranks.py` writes as it does. Results of ABB are compared with what
they must be. Seconds are until the last result: those of `write` until the last program has closed its file, of `drain`, of `analysis`. `link_bytes` are those on the links of what
stores, results included. `overhead`: what hooks add to `write`. `reading`: the part of a whole task that analysis takes longer than a second time, with all near. `sizes` (Figs. 11 and 12): these two for --sizes MiB (64,128,256). --out has the figures.

Rounds alternate, but for `abb` and `sizes`, which run each way on a machine of its own. Prints JSON lines with medians
(`ratio` is time against the peer's: below 1 is faster, but for `write`, `shared`, `hooks` and `links`, which give speed). Needs root.
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
import local_array
import shared
from dscal import MIB, parser_of, testbed
from mount import Bench, write as write_file

GOALS = {"write": 0.9, "shared": 0.9, "hooks": 0.9}
# A thousandth of the values is above.
KERNELS = {"max": "max dtype=f64", "average": "mean dtype=f64", "filter": "filter dtype=f64 above=999 out=raw"}


class Local(local_array.Array):
    """Elements of the tier and one that stores, on this machine."""

    def __init__(self, bursts, options, mounts):
        self.bursts = bursts
        super().__init__(elements=1 + bursts, mount=mounts, folder=options.folder, binary=options.binary)

    def _start(self, name, *args):
        tier = ("--tier", "burst") if name.startswith("element") and name != "element0" else ()
        super()._start(name, *args, *tier)


def write(options):
    with Local(1, options, 1) as array:
        size, times = options.size_mib * MIB, {"ours": [], "peer": []}
        places = {"ours": f"{array.mount_point}/f", "peer": f"{array.folder}/f"}
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
    with Local(4, options, 2) as array:
        shared.GOAL = GOALS["shared"]
        shared.measure(options, array.mount_points, MIB)


class Linked:
    """Elements that store behind slow links, and perhaps one of the tier on the client's host."""

    def __init__(self, options, folder, tier):
        self.options, self.folder, self.tier = options, folder, tier
        self.array = testbed.Array(options, f"{folder}/array", server_flags=("--drain-after", options.drain_after))
        try:
            if tier:
                element = os.path.join(folder, "array", "burst")
                number = len(self.array.elements)
                self.array.client.start(*self.array.program, "element", "--id", str(number), "--tier", "burst", "--folder", element, "--listen",
                                        f"{self.array.client.address}:0", "--cores", "2", log=os.path.join(folder, "burst.log"))
                up = lambda: sum(e["up"] for e in self.array.ask("status")["elements"]) >= number + 2
                testbed.wait("the element of the tier", up)
            self.array.mount()
        except BaseException:
            self.array.remove()
            raise

    def __enter__(self):
        return self.array

    def __exit__(self, *_):
        self.array.remove()


def at(array, *path):
    return os.path.join(array.mount_point, *path)


def stored(array):
    array.tidemill("drain", "/", "--wait")


def drain(options):
    times = {"seen": [], "stored": [], "peer": []}
    for _ in range(options.rounds):
        for tier in (True, False):
            with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.folder) as folder, Linked(options, folder, tier) as array:
                begun = time.perf_counter()
                array.client.call("sh", "-c", f"dd if=/dev/zero of={at(array, 'f')} bs=1M count={options.size_mib} status=none")
                seen = time.perf_counter() - begun
                array.client.call("sync", at(array, "f"))
                stored(array)
                whole = time.perf_counter() - begun
                times["seen" if tier else "peer"].append(seen if tier else whole)
                if tier:
                    times["stored"].append(whole)
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    print(json.dumps({"what": f"{options.size_mib} MiB to elements behind {options.rate_mbit} Mbit/s", "peer": "without the tier",
                      "seen_s": round(middle["seen"], 3), "stored_s": round(middle["stored"], 2), "peer_s": round(middle["peer"], 2),
                      "ratio": round(middle["seen"] / middle["peer"], 4), "ratio_stored": round(middle["stored"] / middle["peer"], 3)}), flush=True)


def written(start, source, folder, number):
    """All programs write at once; the seconds until the last has closed its file."""
    begun = time.perf_counter()
    writers = [start(["dd", f"if={source}{rank}", f"of={folder}/{rank}.f64", "bs=1M", "status=none"]) for rank in range(number)]
    if any([writer.wait() for writer in writers]):
        raise SystemExit("a program could not write")
    return time.perf_counter() - begun


def sources(options, folder):
    """What each program writes: doubles below 1000, the same again in each MiB."""
    source, chance = os.path.join(folder, "source"), random.Random(1)
    pieces = options.size_mib // options.ranks
    for rank in range(options.ranks):
        with open(f"{source}{rank}", "wb") as file:
            piece = numbers.array("d", (chance.uniform(0, 1000) for _ in range(MIB // 8)))
            for _ in range(pieces):
                piece.tofile(file)
    return source, pieces * MIB // 8


def hooks(options):
    with Local(1, options, 1) as array, tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.folder) as folder:
        source, size = sources(options, folder)
        for what, kernel in KERNELS.items():
            times = {"ours": [], "peer": []}
            for turn in range(options.rounds + 1):
                for side in times:
                    place = os.path.join(array.mount_point, f"{what}-{side}-{turn}")
                    os.mkdir(place)
                    if side == "ours":
                        array.tidemill("hook", "add", f"/{what}-{side}-{turn}/*.f64", "--map", kernel, "--output", "out/${stem}", "--on", "write",
                                       "--name", "bench")
                    os.sync()
                    times[side].append(written(subprocess.Popen, source, place, options.ranks))
                    if side == "ours":
                        results = [os.path.join(place, "out", str(rank)) for rank in range(options.ranks)]
                        local_array.wait("the results", lambda: all(map(os.path.exists, results)), 600)
                        array.tidemill("hook", "remove", "bench")
                    shutil.rmtree(place)
            times = {side: taken[1:] for side, taken in times.items()}
            Bench.print(f"write seen by {options.ranks} programs, hook {what}", "no hook", times, size * 8 * options.ranks, 0, GOALS["hooks"])


def main():
    parser = parser_of(__doc__, 3)
    parser.set_defaults(elements=None, rate_mbit=250, element_cores=1.0, client_cores=2.0)
    whats = {"write": write, "shared": together, "drain": drain, "hooks": hooks, "links": abb.together, "abb": abb.whole_tasks, "sizes": abb.sizes}
    parser.add_argument("what", nargs="*", default=list(whats))
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--drain-after", default="30s")
    for name, default in (("ratios", "8,16,32"), ("patterns", "N-N,N-m,N-1"), ("kernels", ",".join(abb.KERNELS)), ("ways", ",".join(abb.WAYS)), ("sizes", "64,128,256")):
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--bursts", type=int, default=1)
    parser.add_argument("--place", choices=("near", "apart"), default="near")
    parser.add_argument("--host-mbit", type=int, default=1000)
    parser.add_argument("--pfs-mbit", type=int, default=500)
    options = parser.parse_args()
    for what in options.what:
        mine = argparse.Namespace(**vars(options))
        mine.elements = int(options.elements or (2 if what == "drain" else 1))
        whats[what](mine)


if __name__ == "__main__":
    sys.exit(main())
