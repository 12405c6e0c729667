"""Cluster of Active Burst-Buffer (§IV-B) on the testbed, with the paper's measurements. `burst.py` runs it; its help explains the terms."""
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

import ranks
from dscal import HERE, MIB, carried, figures, testbed

WAYS = ("ABB", "BB+ANALY", "IOF+ANALY", "PFS+ANALY")
# The kernel of the map, the reduce, and the arguments of both. One value in 2000 is above the bound.
KERNELS = {"max": ("max", "max", "dtype=f64"), "average": ("mean", "mean", "dtype=f64"), "filter": ("filter", None, "dtype=f64 above=999.5 out=raw")}
# The paper's shares of the whole task for 8:1, and of the bytes of data.
GOALS = {"BB+ANALY": 0.55, "PFS+ANALY": 0.5}
GOAL_BYTES = 0.001
GOAL_TOGETHER = 0.9
# Number of programs that read at once on a host with analysis.
READERS = 4
PATIENCE_S = 120


def until(what, ready):
    """Polls often, so that the measured times do not include waits of the script."""
    end = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"gave up waiting for {what}")
        time.sleep(0.01)


class Machine(testbed.Cluster):
    """Hosts with writing programs and a mount each; a node of the tier for each of them, on the same or on its own host; and nodes of the capacity tier."""

    def __init__(self, options, directory, tier, place="near"):
        options.rate_mbit, self.mounts, self.points = options.pfs_mbit, [], []
        super().__init__(options, os.path.join(directory, "cluster"), server_flags=("--stage-out-after", options.stage_out_after), client_mbit=options.host_mbit)
        try:
            more = [self.network.add(f"host{number}", options.client_cores, options.host_mbit) for number in range(1, options.bursts)]
            self.hosts = [self.client, *more]
            self.points = [self.mount_point, *(os.path.join(directory, "cluster", f"mnt{number}") for number in range(1, options.bursts))]
            for number, host in enumerate(self.hosts) if tier else ():
                if place == "apart":
                    host = self.network.add(f"burst{number}", options.client_cores, options.host_mbit)
                self._burst(host, len(self.nodes) + number)
            up = lambda: sum(e["up"] for e in self.ask("status")["nodes"]) >= len(self.nodes) + 1 + (options.bursts if tier else 0)
            testbed.wait("the nodes of the tier", up)
            self.mount_all()
            self.client.call("mkdir", "-p", os.path.join(self.mount_point, "run"))
        except BaseException:
            self.remove()
            raise

    def _burst(self, host, number):
        host.start(*self.program, "node", "run", "--id", str(number), "--tier", "burst", "--data-dir", os.path.join(self.directory, f"burst{number}"),
                   "--listen", f"{host.address}:0", "--cores", "1", log=os.path.join(self.directory, f"burst{number}.log"))

    def mount_all(self):
        for host, point in zip(self.hosts, self.points):
            os.makedirs(point, exist_ok=True)
            self.mounts.append(host.start(*self.program, "mount", "--path", point, log=os.path.join(self.directory, "mounts.log")))
        for point in self.points:
            testbed.wait("a mount", lambda: os.path.exists(os.path.join(point, ".tidemill")))

    def unmount_all(self):
        for mount in self.mounts:
            mount.terminate()
        for mount, point in zip(self.mounts, self.points):
            try:
                mount.wait(timeout=60)
            finally:
                subprocess.run(["umount", "-l", point], capture_output=True)
        self.mounts = []

    def close(self):
        try:
            self.unmount_all()
        finally:
            super().close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()

    def ranks(self, action, shape):
        """Runs all ranks at once, and returns the seconds until the last rank has closed its file."""
        each = self.options.ratio
        command = [sys.executable, os.path.join(HERE, "ranks.py"), action]
        programs = [host.popen(*command, os.path.join(point, "run"), str(number * each), str(each), str(each * len(self.hosts)), json.dumps(shape),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE) for number, (host, point) in enumerate(zip(self.hosts, self.points))]
        begun = 0.0
        for gate in ("ready", "opened"):
            if any([program.stdout.readline() != f"{gate}\n".encode() for program in programs]):
                raise SystemExit(f"a rank could not {action}")
            begun = begun or time.perf_counter()
            for program in programs:
                program.stdin.write(b"\n")
                program.stdin.flush()
        if any([program.wait() for program in programs]):
            raise SystemExit(f"a rank could not {action}")
        return time.perf_counter() - begun

    def stage_out(self, *flags):
        """Waits as `--wait` does, which polls only twice a second."""
        until("the stage-out", lambda: self.ask("stage", "out", *flags)["bytes"] == 0)

    def analyse(self, kernel, args, names):
        """Runs the kernel on all hosts at once, on files that no host has read. The readers of a host share its files."""
        self.unmount_all()
        self.mount_all()
        return self.read(kernel, args, names)

    def read(self, kernel, args, names):
        begun, programs, step = time.perf_counter(), [], len(self.hosts) * READERS
        for reader in range(step):
            host, point = self.hosts[reader % len(self.hosts)], self.points[reader % len(self.hosts)]
            files = [os.path.join(point, "run", name) for name in names[reader::step]]
            if files:
                programs.append(host.popen(*self.program, "kernel", "test", kernel, *files, "--", *args.split(), stdout=subprocess.DEVNULL))
        if any([program.wait() for program in programs]):
            raise SystemExit(f"{kernel} failed on a host that analyses")
        return time.perf_counter() - begun


def shape_of(options, pattern, **more):
    everybody = options.ratio * options.bursts
    files = {"N-N": everybody, "N-m": max(1, everybody // 4), "N-1": 1}[pattern]
    return {"files": files, "pieces": max(1, options.size_mib // everybody), "strided": False, "sync": False, **more}


def hooked(machine, pattern, what):
    """Makes the hook, and returns a function that tells whether its last result exists."""
    (kernel, reduce, args), files = KERNELS[what], shape_of(machine.options, pattern)["files"]
    words = ["rule", "create", "/run/*.f64", "--map", f"{kernel} {args}", "--on", "write", "--inputs", "delete", "--name", "abb", "--time", "5m"]
    if reduce:
        machine.tidemill(*words, "--reduce", f"{reduce} dtype=text", "--group", str(files), "--result", "out/all")
        results = ["all"]
    else:
        machine.tidemill(*words, "--result", "out/{stem}")
        results = [str(number) for number in range(files)]
    paths, asked = [os.path.join(machine.mount_point, "run", "out", name) for name in results], time.monotonic()

    def there():
        nonlocal asked
        if time.monotonic() > asked + 5:
            # A wait for the result would never end.
            asked = time.monotonic()
            if failed := machine.tidemill("rule", "log", "abb", "--state", "failed").splitlines()[1:]:
                raise SystemExit(f"{what}, {pattern}: " + "\n".join(failed))
        return all(map(os.path.exists, paths))

    return paths, there


def right(machine, pattern, what, paths):
    """Compares results with the expected values."""
    shape, everybody = shape_of(machine.options, pattern), machine.options.ratio * machine.options.bursts
    each = [ranks.values(rank) for rank in range(everybody)]
    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            found = file.read()
        if what == "filter":
            wanted = sum(shape["pieces"] * sum(value > 999.5 for value in each[rank]) for rank in ranks.ranks_of(number, everybody, shape))
            is_right = len(found) == 8 * wanted
        elif what == "max":
            is_right = float(found) == max(map(max, each))
        else:
            is_right = math.isclose(float(found), math.fsum(map(math.fsum, each)) / (everybody * len(each[0])), rel_tol=1e-12)
        if not is_right:
            raise SystemExit(f"{what}, {pattern}: {path} has wrong values: {found[:40]!r}")


def task(machine, way, pattern, what):
    """Runs one way from the first write to the last result. Returns the seconds of its parts, and the bytes on the links of nodes of the capacity tier."""
    kernel, _, args = KERNELS[what]
    shape, parts = shape_of(machine.options, pattern), {}
    names = [f"{number}.f64" for number in range(shape["files"])]
    if way == "ABB":
        results, there = hooked(machine, pattern, what)
    before = sum(carried(machine.nodes).values())
    parts["write"] = machine.ranks("write", shape)
    begun = time.perf_counter()
    if way == "ABB":
        until("the results", there)
        parts["analysis"] = time.perf_counter() - begun
        right(machine, pattern, what, results)
        machine.tidemill("rule", "delete", "abb")
        # Bytes that leave the tier afterwards count, too.
        machine.stage_out("/")
    else:
        if way in ("BB+ANALY", "IOF+ANALY"):
            machine.stage_out("/run", "--evict")
            # A forwarder has written its data when the data is stored.
            at = "write" if way == "IOF+ANALY" else "stage_out"
            parts[at] = parts.get(at, 0) + time.perf_counter() - begun
        parts["analysis"] = machine.analyse(kernel, args, names)
        parts["again"] = machine.read(kernel, args, names)
    moved = sum(carried(machine.nodes).values()) - before
    machine.client.call("sh", "-c", f"rm -rf {machine.mount_point}/run/*")
    os.sync()
    return parts, moved


def middle(rows):
    """Returns the medians of each part and of the bytes."""
    parts = {part: statistics.median(row[0][part] for row in rows) for part in rows[0][0]}
    return parts, statistics.median(row[1] for row in rows)


def whole(parts):
    return sum(seconds for part, seconds in parts.items() if part != "again")


def measure(options, ways, patterns, kernels):
    """Runs all ways in turn, each on its own cluster: {(pattern, kernel): {way: (parts, bytes)}}."""
    taken = {}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        os.chmod(directory, 0o755)  # kernels run as other users
        for way in [way for way in WAYS if way in ways]:
            with Machine(options, directory, way != "PFS+ANALY", "apart" if way == "IOF+ANALY" else options.place) as machine:
                for pattern in patterns:
                    for what in kernels:
                        rows = taken.setdefault((pattern, what), {}).setdefault(way, [])
                        rows += [task(machine, way, pattern, what) for _ in range(options.rounds)]
    return {at: {way: middle(rows) for way, rows in found.items()} for at, found in taken.items()}


def show(options, pattern, what, found):
    size = shape_of(options, pattern)["pieces"] * options.ratio * options.bursts * MIB
    seconds = {way: round(whole(parts), 3) for way, (parts, _) in found.items()}
    line = {"what": f"{what} of {size // MIB} MiB, {pattern}, {options.ratio}:1, {options.bursts} nodes of the tier {options.place}", "seconds": seconds,
            "write_s": {way: round(parts["write"], 3) for way, (parts, _) in found.items()}}
    for way, name in (("BB+ANALY", "bb"), ("PFS+ANALY", "pfs")):
        if {"ABB", way} <= set(found):
            line[f"ratio_{name}"] = round(seconds["ABB"] / seconds[way], 3)
            if options.ratio == 8:
                line[f"goal_{name}"] = GOALS[way]
            line[f"overhead_{name}"] = round(found["ABB"][0]["write"] / found[way][0]["write"] - 1, 3)
            # The cost of reading is the difference to a second run, whose data is all in the cache.
            parts = found[way][0]
            line[f"reading_{name}"] = round(max(0.0, parts["analysis"] - parts["again"]) / whole(parts), 3)
    if "ABB" in found:
        line |= {"link_bytes": int(found["ABB"][1]), "bytes_of_data": round(found["ABB"][1] / size, 6), "goal_bytes": GOAL_BYTES}
    print(json.dumps(line), flush=True)
    return line


def draw(options, name, title, unit, groups):
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        with open(os.path.join(options.out, name), "w") as file:
            file.write(figures.bars(title, unit, groups))


def short(way):
    return way.removesuffix("+ANALY")


def whole_tasks(options):
    """Measures I/O alone, and whole tasks (Figs. 6 to 10)."""
    for ratio in map(int, options.ratios.split(",")):
        options.ratio = ratio
        patterns, kernels = options.patterns.split(","), options.kernels.split(",")
        ways = options.ways.split(",")
        found = measure(options, ways, patterns, kernels)
        for (pattern, what), one in found.items():
            show(options, pattern, what, one)
        order = ", ".join(map(short, [way for way in WAYS if way in ways]))
        groups = [(f"{what}, {pattern}", [[(part, parts[part]) for part in ("write", "stage_out", "analysis") if part in parts] for parts, _ in one.values()])
                  for (pattern, what), one in found.items()]
        number = {8: "8", 16: "9", 32: "10"}.get(ratio, f"-{ratio}")
        draw(options, f"abb-fig{number}.svg", f"Whole tasks, {ratio}:1: {order}", "s", groups)
        rates = [(f"{what}, {pattern}", [[("write", options.size_mib / parts["write"])] for parts, _ in one.values()]) for (pattern, what), one in found.items()]
        draw(options, f"abb-fig{6 if ratio == 8 else 7}-{ratio}.svg", f"I/O as programs see it, {ratio}:1: {order}", "MiB/s", rates)


def sizes(options):
    """Measures the overhead of hooks for writers, and the share of reading in a task, for several sizes (Figs. 11 and 12)."""
    for ratio in [ratio for ratio in map(int, options.ratios.split(",")) if ratio in (8, 16)] or [8]:
        options.ratio, lines = ratio, []
        for options.size_mib in map(int, options.sizes.split(",")):
            found = measure(options, ("ABB", "BB+ANALY", "PFS+ANALY"), ["N-N"], ["filter"])
            lines.append((options.size_mib, show(options, "N-N", "filter", found["N-N", "filter"])))
        for name, key, title in (("11", "overhead", "What hooks add to the time of writes"), ("12", "reading", "What reading is of a whole task")):
            groups = [(f"{size} MiB: BB, PFS", [[(key, max(0.0, 100 * line[f"{key}_{way}"]))] for way in ("bb", "pfs")]) for size, line in lines]
            draw(options, f"abb-fig{name}-{ratio}.svg", f"{title}, {ratio}:1", "%", groups)


def together(options):
    """Compares one file on several nodes of the tier with a file for each program. Nodes are on the hosts of their programs or on their own hosts with their own links."""
    options.bursts, options.ratio = 4, 1
    times = {action: {pattern: [] for pattern in ("N-1", "N-N")} for action in ("write", "check")}
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory, Machine(options, directory, True, options.place) as machine:
        for turn in range(options.rounds + 1):
            for pattern in times["write"]:
                for action in times:
                    seconds = machine.ranks(action, shape_of(options, pattern, strided=True, sync=True))
                    if turn:
                        times[action][pattern].append(seconds)
                if turn == 0 and pattern == "N-1":
                    layout = machine.ask("stat", "/run/0.f64")
                    parts = {replica["node"] for part in layout["parts"] for replica in part["replicas"]}
                    if len(parts) != options.bursts:
                        raise SystemExit(f"the file is on {sorted(parts)}, not on {options.bursts} nodes")
                machine.client.call("sh", "-c", f"rm -f {machine.mount_point}/run/*.f64")
                os.sync()
    for action, found in times.items():
        ours, peer = (statistics.median(found[pattern]) for pattern in ("N-1", "N-N"))
        line = {"what": f"N-1, 4 hosts with links of {options.host_mbit} Mbit/s, nodes of the tier {options.place}, {'write' if action == 'write' else 'read back by others'} {options.size_mib} MiB",
                "peer": "N-N", "ours_s": round(ours, 3), "peer_s": round(peer, 3), "ratio": round(peer / ours, 3)}
        print(json.dumps(line | ({"goal": GOAL_TOGETHER} if action == "write" else {})), flush=True)
