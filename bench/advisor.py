#!/usr/bin/env python3
"""Is the advisor right? Predicts ten kernels in ten situations, and then runs them in all ways.

  advisor.py [--beds local,linked] [--kernels max,...] [--situations 1-10] [--rounds 3] [--binary TIDEMILL] [--out DIRECTORY]
  advisor.py --table FILE ...      # prints the table of lines from earlier calls

There are two beds. `local`: server and a node of one core are processes of this machine, which client and node share. `linked`: a
client and a node of one processor each are hosts in network namespaces, with a link of 1 Gbit/s between them
(testbed/hosts.py). A situation is a bed, a size and a load. The load is nothing, programs that compute without end, or running and
queued jobs of the node. Kernels reduce, keep or expand their input; six are built in, four are programs.

Each case calls `tidemill plan offload` once. Then all ways run in turn, --rounds times. Each way starts with the input on the
node, in its page cache, with the same load started again, and ends with the result in a file of the client:

  client   `tidemill get` of the input, then the kernel here: built-in kernels by `tidemill kernel test`, programs directly
  node  `tidemill submit --watch` of a job that is pinned to the node, then `tidemill get` of the result
  both     both at once, each on its part of the input, which is stored there as a file; only for kernels whose partial
           results can be merged, with the predicted best share

Times are wall clock around the commands. The shortest time of all rounds counts, as other programs only add time. The results of all
ways must be the same. The advice is *right* if its way took the shortest time, and *near* if its way took at most a tenth longer. The
script prints a line for each case and the counts, and keeps JSON lines in OUT/advisor.jsonl. It needs root, and an otherwise idle
machine.
"""
import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]

from hosts import Network, wait  # noqa: E402

PORT = 7070
MIB = 1 << 20
NEAR = 1.10
# Kernel, arguments, kind of data.
KERNELS = [("max", [], "numbers"), ("grep", ["-c", "tide"], "text"), ("wordcount", [], "text"), ("sort", [], "numbers"),
           ("gzip", ["level=1"], "text"), ("dedup", [], "text"), ("base64", [], "text"), ("basenc", ["--base16"], "text"),
           ("sha256sum", [], "text"), ("tr", ["a-z", "A-Z"], "text")]
BUILTIN = {"max", "grep", "wordcount", "sort", "gzip", "dedup"}
# Kernels that merge the results of parts.
JOIN = {"max": lambda parts: max(map(float, parts)), "grep": lambda parts: sum(map(int, parts)),
        "wordcount": lambda parts: [sum(column) for column in zip(*(map(int, part.split()) for part in parts))]}
# Bed, MiB, programs that compute forever, jobs of about a second on the node.
SITUATIONS = [("local", 1, 0, 0), ("local", 32, 0, 0), ("local", 128, 0, 0), ("local", 32, 2, 0), ("local", 64, 4, 0),
              ("local", 32, 0, 1), ("local", 128, 0, 3), ("linked", 8, 0, 0), ("linked", 64, 0, 0), ("linked", 64, 0, 2)]
# Number of turns of a shell loop in about a second.
TURNS = 1_200_000


def say(text):
    print(text, file=sys.stderr, flush=True)


class Bed:
    """Cluster with one node of one core, and the commands of its client."""

    def __init__(self, options):
        self.options, self.jobs = options, 0
        self.directory = tempfile.mkdtemp(prefix="tidemill-advisor-")

    def call(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
        return done.stdout

    def tidemill(self, *args):
        return self.call(self.options.binary, *self.flags, *args)

    def ask(self, *args):
        return json.loads(self.tidemill("--json", *args))

    def script(self, name, tasks):
        self.jobs += 1
        path = f"{self.directory}/{name}-{self.jobs}.conf"
        with open(path, "w") as file:
            file.write(f'name = "{name}"; workdir = "/"; tasks = ( {", ".join(tasks)} );')
        return path

    def load(self, programs, jobs):
        return Load(self, programs, jobs)

    def close(self):
        shutil.rmtree(self.directory, ignore_errors=True)


class Local(Bed):
    """Bed of processes on this machine."""

    def __init__(self, options):
        super().__init__(options)
        from local_cluster import Cluster
        self.cluster = Cluster(nodes=1, cores=1, directory=self.directory, binary=options.binary)
        self.flags = ["--dir", self.directory, "--server", self.cluster.endpoint]

    def close(self):
        self.cluster.__exit__()
        super().close()


class Linked(Bed):
    """Bed of hosts with a link between them."""

    def __init__(self, options):
        super().__init__(options)
        self.network = Network("advisor", 1000)
        try:
            self.client = self.network.add("client", 1)
            server = self.network.add("server", 0.5)
            node = self.network.add("node0", 1)
            token = f"{self.directory}/server/token"
            self.flags = ["--dir", self.directory, "--server", f"https://{server.address}:{PORT}", "--token-file", token]
            server.start(options.binary, "server", "run", "--data-dir", f"{self.directory}/server", "--listen",
                         f"{server.address}:{PORT}", log=f"{self.directory}/server.log")
            wait("the server", lambda: os.path.exists(token))
            node.start(options.binary, *self.flags, "node", "run", "--id", "0", "--data-dir", f"{self.directory}/node0",
                          "--listen", f"{node.address}:{PORT}", "--cores", "1", log=f"{self.directory}/node0.log")
            wait("the node", lambda: any(e["up"] for e in self.ask("status")["nodes"]))
        except BaseException:
            self.close()
            raise

    def call(self, *command):
        return self.client.call("setsid", "--wait", *command)

    def close(self):
        self.network.close()
        super().close()


class Load:
    """Other load, which runs while the context is active."""

    def __init__(self, bed, programs, jobs):
        self.bed, self.programs, self.jobs, self.job = bed, programs, jobs, None

    def __enter__(self):
        # Programs of another user: in their own session, at the usual priority.
        self.running = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True)
                        for _ in range(self.programs)]
        if self.jobs:
            spin = f"i=0; while [ $i -lt {TURNS} ]; do i=$((i+1)); done"
            tasks = [f'{{ name = "spin{n}"; kernel = "sh"; args = [ "-c", "{spin}" ]; output = [ "spun{n}" ]; '
                     f'stdout = "spun{n}"; node = 0; }}' for n in range(self.jobs)]
            self.job = self.bed.ask("submit", "--no-cache", "--replace", self.bed.script("load", tasks))["job"]
            wait("the load", lambda: any(t["state"] == "running" for t in self.bed.ask("job", "show", str(self.job))["tasks"]))
        return self

    def __exit__(self, *_):
        for program in self.running:
            program.kill()
            program.wait()
        if self.job is not None:
            self.bed.tidemill("-q", "job", "cancel", str(self.job))


def make(path, kind, size):
    """Returns data like that of `tidemill kernel bench`: random numbers, or lines of words."""
    block = os.urandom(MIB)
    with open(path, "wb") as file:
        if kind == "numbers":  # doubles between 1 and 2
            block = b"".join(block[i:i + 6] + b"\xf0\x3f" for i in range(0, MIB, 8))
        else:
            words = [b"tide", b"mill", b"pond", b"and", b"the", b"of", b"water", b"wheel", b"grinds", b"flour", b"storage",
                     b"burst", b"drain", b"node", b"kernel", b"analysis"]
            block = b"".join(words[byte & 15] + (b"\n" if byte >> 4 == 0 else b" ") for byte in block)[:MIB]
        for _ in range(size // MIB):
            file.write(block)


class Case:
    """Kernel with its file."""

    def __init__(self, bed, number, kernel, args, kind, size):
        self.bed, self.kernel, self.args, self.kind, self.size = bed, kernel, args, kind, size
        self.name, self.made = f"{kernel}-{number}", []
        self.local = f"{bed.directory}/{kind}-{size}"
        if not os.path.exists(self.local):
            make(self.local, kind, size)
        self.put(self.local, "whole")
        self.out = f"{bed.directory}/out"
        os.makedirs(self.out, exist_ok=True)

    def put(self, path, part):
        self.bed.tidemill("-q", "put", "--node", "0", path, f"/{self.name}-{part}")
        self.made.append(f"/{self.name}-{part}")

    def remove(self):
        self.bed.tidemill("-q", "rm", *self.made)
        shutil.rmtree(self.out)

    def on_client(self, part):
        """Transfers the input to this client and runs the kernel."""
        data, out = f"{self.bed.directory}/moved", f"{self.out}/client-{part}"
        self.bed.tidemill("-q", "get", f"/{self.name}-{part}", data)
        if self.kernel in BUILTIN:
            self.bed.tidemill("-q", "kernel", "test", self.kernel, data, "--output", os.path.basename(out), "--keep",
                              self.out, "--", *self.args)
        else:
            self.bed.call("sh", "-c", 'data=$1; out=$2; shift 2; exec "$@" < "$data" > "$out"', "run", data, out, self.kernel,
                          *self.args)
        os.unlink(data)

    def on_node(self, part):
        """Runs the kernel on the node and transfers the result to this client."""
        source, result = f"{self.name}-{part}", f"{self.name}-result-{self.bed.jobs}"
        streams = "" if self.kernel in BUILTIN else f'stdin = "{source}"; stdout = "{result}";'
        args = ", ".join(f'"{arg}"' for arg in self.args)
        task = (f'{{ name = "run"; kernel = "{self.kernel}"; args = [ {args} ]; input = [ "{source}" ]; '
                f'output = [ "{result}" ]; {streams} node = 0; }}')
        self.made.append(f"/{result}")
        self.bed.tidemill("-q", "submit", "--no-cache", "--watch", self.bed.script(self.kernel, [task]))
        self.bed.tidemill("-q", "get", f"/{result}", f"{self.out}/node-{part}")

    def on_both(self):
        """Runs the node's part and the client's part at once. The time excludes the cut of the input and the merge of the results."""
        errors = []

        def guarded(work, part):
            try:
                work(part)
            except RuntimeError as error:
                errors.append(error)
        other = threading.Thread(target=guarded, args=(self.on_node, "here"))
        other.start()
        guarded(self.on_client, "there")
        other.join()
        if errors:
            raise errors[0]

    def put_parts(self, share):
        """Writes the input as two files, cut between two numbers or two lines."""
        cut = int(self.size * share) // 8 * 8
        with open(self.local, "rb") as file:
            if self.kind == "text":
                file.seek(cut)
                file.readline()
                cut = file.tell()
                file.seek(0)
            for name, length in (("here", cut), ("there", self.size - cut)):
                path = f"{self.bed.directory}/part"
                with open(path, "wb") as part:
                    part.write(file.read(length))
                self.put(path, name)

    def measure(self, rounds, load, share, delay):
        """Returns a list of seconds for each way."""
        ways = {"client": lambda: self.on_client("whole"), "node": lambda: self.on_node("whole")}
        if share is not None and 0 < share < 1:
            self.put_parts(share)
            ways["both"] = self.on_both
        times = {way: [] for way in ways}
        # Kernels that wait for a queue take longer than any short disturbance.
        for _ in range(max(rounds - 1, 1) if load[1] else rounds):
            for way, run in ways.items():
                with self.bed.load(*load):
                    time.sleep(delay)  # time of the advice
                    start = time.monotonic()
                    run()
                    times[way].append(time.monotonic() - start)
        if digest(f"{self.out}/client-whole") != digest(f"{self.out}/node-whole"):
            raise SystemExit(f"{self.kernel}: the results of client and node differ")
        if "both" in ways and self.joined("node-here", "client-there") != self.joined("client-whole"):
            raise SystemExit(f"{self.kernel}: the results of the parts do not make that of the whole")
        result_bytes = os.path.getsize(f"{self.out}/client-whole")
        self.remove()
        return times, result_bytes

    def joined(self, *names):
        parts = []
        for name in names:
            with open(f"{self.out}/{name}") as file:
                parts.append(file.read())
        return JOIN[self.kernel](parts)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one(bed, options, number, kernel, args, kind):
    name, mib, *load = SITUATIONS[number - 1]
    case = Case(bed, number, kernel, args, kind, mib * MIB)
    with bed.load(*load):
        start = time.monotonic()
        advice = bed.ask("plan", "offload", kernel, f"/{case.name}-whole")
        delay = time.monotonic() - start
    predicted = {choice["choice"]: choice for choice in advice["choices"] if choice["feasible"]}
    share = predicted["both"]["node_share"] if "both" in predicted else None
    times, result_bytes = case.measure(options.rounds, load, share, delay if load[1] else 0)
    measured = {way: min(runs) for way, runs in times.items()}
    best = min(measured, key=measured.get)
    advised = measured.get(advice["best"], measured[best])
    rounded = lambda values: {key: round(value, 3) for key, value in values.items()}
    return {"what": "advice against measurement", "kernel": kernel, "bed": name, "mib": mib, "programs": load[0],
            "jobs": load[1], "situation": number, "result_bytes": result_bytes,
            "predicted_s": rounded({way: choice["seconds"] for way, choice in predicted.items() if way in measured}),
            "measured_s": rounded(measured), "all_s": {way: [round(t, 3) for t in runs] for way, runs in times.items()},
            "advice": advice["best"], "best": best, "lost": round(advised / measured[best] - 1, 3),
            "verdict": "right" if advice["best"] == best else "near" if advised <= measured[best] * NEAR else "wrong",
            "sources": advice["sources"]}


def show(lines):
    def cell(line, way):
        if way not in line["measured_s"]:
            return "-"
        return f"{line['predicted_s'][way]:.2f} / {line['measured_s'][way]:.2f}"
    print("seconds, predicted / measured")
    print(f"{'kernel':10} {'bed':6} {'MiB':>4} {'programs':>8} {'jobs':>4} {'node':>14} {'client':>14} {'both':>14}  "
          f"{'advice':8} {'best':8} {'lost':>6}")
    for line in lines:
        print(f"{line['kernel']:10} {line['bed']:6} {line['mib']:4} {line['programs']:8} {line['jobs']:4} "
              f"{cell(line, 'node'):>14} {cell(line, 'client'):>14} {cell(line, 'both'):>14}  {line['advice']:8} "
              f"{line['best']:8} {100 * line['lost']:5.1f}%{' WRONG' if line['verdict'] == 'wrong' else ''}")
    count = lambda verdict: sum(line["verdict"] == verdict for line in lines)
    print(f"{len(lines)} cases: {count('right')} right, {count('near')} within {round(100 * NEAR - 100)} % of the best, "
          f"{count('wrong')} wrong")


def chosen(text):
    numbers = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beds", default="local,linked")
    parser.add_argument("--kernels", default=",".join(name for name, *_ in KERNELS))
    parser.add_argument("--situations", type=chosen, default=chosen(f"1-{len(SITUATIONS)}"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", type=os.path.abspath, default=os.path.join(HERE, "../target/release/tidemill"))
    parser.add_argument("--out", type=os.path.abspath, default=os.path.join(HERE, "out/advisor"))
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print the table of kept lines, without a measurement")
    options = parser.parse_args()
    if options.table:
        lines = [line for path in options.table for line in read(path)]
    else:
        os.makedirs(options.out, exist_ok=True)
        lines = measure(options)
    show(lines)


def read(path):
    with open(path) as file:
        return list(map(json.loads, file))


def keep(path, line):
    """Stores a measurement, and replaces the earlier measurement of that case."""
    case = lambda one: (one["kernel"], one["situation"])
    before = read(path) if os.path.exists(path) else []
    with open(path, "w") as file:
        for one in [*(one for one in before if case(one) != case(line)), line]:
            file.write(json.dumps(one) + "\n")


def measure(options):
    lines = []
    kernels = [kernel for kernel in KERNELS if kernel[0] in options.kernels.split(",")]
    for name, make_bed in (("local", Local), ("linked", Linked)):
        numbers = [number for number in options.situations if SITUATIONS[number - 1][0] == name]
        if name not in options.beds.split(",") or not numbers:
            continue
        bed = make_bed(options)
        try:
            with bed.load(0, 1) as load:  # so that the cluster knows the time of such jobs
                bed.tidemill("-q", "job", "watch", str(load.job))
                load.job = None
            for kernel, args, kind in kernels:
                say(f"{name}: {kernel}")
                bed.tidemill("-q", "kernel", "bench", kernel, "--nodes", "--data", kind, "--", *args)
                for number in numbers:
                    line = one(bed, options, number, kernel, args, kind)
                    lines.append(line)
                    keep(os.path.join(options.out, "advisor.jsonl"), line)
        finally:
            bed.close()
    return lines


if __name__ == "__main__":
    main()
