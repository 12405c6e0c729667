#!/usr/bin/env python3
"""The burst tier (Active Burst-Buffer, §IV): what a program sees of its writes, and how long they take to be stored.

  cargo build --release -p tidemill-cli && bench/burst.py [write] [shared] [drain] [hooks] [abb] [--rounds 3] [--size-mib 256]

`write`: one program writes a file of --size-mib MiB in pieces of 1 MiB, in place through the mount, into an element of the tier, against ext4 beside it. `shared`: four programs on
two mounts write one file (N-1) into four elements of the tier, against a file each (N-N). `drain`: the client writes --size-mib MiB to elements that store, each behind a link of --rate-mbit
(250 by default); `seen` with an element of the tier on its host, `stored` when that has drained; against the same without the tier. `hooks` (Fig. 11): --ranks programs on this machine
write --size-mib MiB together, in place into an element of the tier, with a hook on all that is written and without (`peer`); rounds alternate on one array, and each begins when all maps
of the one before have ended. `abb` (Figs. 6 to 10): --ranks programs on
one host write --size-mib MiB of doubles together, of which a kernel is wanted (max, average, filter): by hooks on the element of the tier, of which only results stay (ABB); by
the kernel on a client that reads from the elements that store, after it has drained there from the tier (BB+ANALY), or was written there at once (PFS+ANALY). Links as in `drain`;
`link_bytes` are those on the links of the elements that store. `seen` is until the last program has closed its file.

Rounds alternate. Prints JSON lines with medians (`ratio` is time against the peer's: below 1 is faster, but for `write` and `shared`, which give speed). Needs root.
"""
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

import local_array
import shared
from dscal import MIB, carried, parser_of, testbed
from labios import local
from mount import Bench, write as write_file

GOALS = {"write": 0.9, "shared": 0.9, "hooks": 0.9}
# A thousandth of the values is above.
KERNELS = {"max": ("max", "dtype=f64"), "average": ("mean", "dtype=f64"), "filter": ("filter", "dtype=f64 above=999 out=raw")}


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


def ranks(options, array, source):
    return written(lambda command: array.client.popen(*command), source, at(array, "run"), options.ranks)


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
        for what, (kernel, args) in KERNELS.items():
            times = {"ours": [], "peer": []}
            for turn in range(options.rounds + 1):
                for side in times:
                    place = os.path.join(array.mount_point, f"{what}-{side}-{turn}")
                    os.mkdir(place)
                    if side == "ours":
                        array.tidemill("hook", "add", f"/{what}-{side}-{turn}/*.f64", "--map", f"{kernel} {args}", "--output", "out/${stem}", "--on", "write",
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


def analysed(options, array, kernel, args):
    """The kernel on the client, which reads from the elements that store."""
    array.unmount()
    array.mount()
    for rank in range(options.ranks):
        local(array, kernel, args, [at(array, "run", f"{rank}.f64")])


def task(options, folder, source, way, kernel, args):
    """One way from the first write to the last result: seconds, those that the programs saw, and bytes on the links."""
    with Linked(options, folder, way != "PFS+ANALY") as array:
        array.client.call("mkdir", at(array, "run"))
        if way == "ABB":
            array.tidemill("hook", "add", "/run/*.f64", "--map", f"{kernel} {args}", "--output", "out/${stem}", "--on", "write", "--keep", "results",
                           "--name", "abb")
        before, begun = carried(array.elements), time.perf_counter()
        seen = ranks(options, array, source)
        if way == "ABB":
            results = [at(array, "run", "out", str(rank)) for rank in range(options.ranks)]
            testbed.wait("the results", lambda: all(map(os.path.exists, results)), 600)
        else:
            if way == "BB+ANALY":
                array.tidemill("drain", "/run", "--free", "--wait")
            analysed(options, array, kernel, args)
        seconds = time.perf_counter() - begun
        if way == "ABB":
            # What leaves the tier afterwards counts, too.
            time.sleep(1)
            stored(array)
        return seconds, seen, sum(carried(array.elements).values()) - sum(before.values())


def abb(options):
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.folder) as folder:
        os.chmod(folder, 0o755)  # kernels are other users
        source, size = sources(options, folder)
        for what, (kernel, args) in KERNELS.items():
            ways = {way: [] for way in ("ABB", "BB+ANALY", "PFS+ANALY")}
            for turn in range(options.rounds):
                for way, taken in ways.items():
                    taken.append(task(options, os.path.join(folder, f"{what}-{way}-{turn}"), source, way, kernel, args))
            middle = {way: [statistics.median(values) for values in zip(*taken)] for way, taken in ways.items()}
            ours = middle["ABB"]
            print(json.dumps({"what": f"{what} of {options.size_mib} MiB, {options.ranks} programs, 1 element of the tier", "seconds": round(ours[0], 3),
                              **{way: round(middle[way][0], 3) for way in ("BB+ANALY", "PFS+ANALY")},
                              "ratio_bb": round(ours[0] / middle["BB+ANALY"][0], 3), "ratio_pfs": round(ours[0] / middle["PFS+ANALY"][0], 3),
                              "seen_s": round(ours[1], 3), "seen_without_hooks_s": round(middle["BB+ANALY"][1], 3),
                              "link_bytes": int(ours[2]), "bytes_of_data": round(ours[2] / (size * 8 * options.ranks), 6)}), flush=True)


def main():
    parser = parser_of(__doc__, 3)
    parser.set_defaults(elements="2", rate_mbit=250, element_cores=1.0, client_cores=2.0)
    parser.add_argument("what", nargs="*", default=["write", "shared", "drain", "hooks", "abb"])
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--drain-after", default="30s")
    options = parser.parse_args()
    options.elements = int(options.elements)
    for what in options.what:
        {"write": write, "shared": together, "drain": drain, "hooks": hooks, "abb": abb}[what](options)


if __name__ == "__main__":
    sys.exit(main())
