#!/usr/bin/env python3
"""Is the advisor right? Kernels that reduce and kernels that expand, predicted and then really run in both places.

  offload.py [--element-cores 1,0.25] [--rate-mbit 1000] [--runs 3] [--binary TIDEMILL]

A client, a server and an element, each a network namespace with a link and a processor share of its own
(testbed/hosts.py). `tidemill bench kernel --elements` measures on the client, `tidemill plan offload` predicts there,
then both placements run, taking turns, with the input on the element, in its page cache, and the result wanted as a
file on the client:

  host     `tidemill get` of the input, then the kernel on the client: built-in ones by `tidemill kernel test`,
           programs as they are
  element  `tidemill submit` of a job that is pinned to the element, `tidemill watch`, then `tidemill get` of the result
  split    only if it is advised: both at once, each over its part of the input, which lies there as a file of its own

All times are wall-clock around the commands, their starts included, which are in no prediction. `--no-load`, since the
system tells how busy the real machine is, and not the client's share of it. Results of all placements must be the same. Prints
a JSON line for each kernel: predicted and measured seconds of each placement, and whether the advice was the fastest.
Needs root.
"""
import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "testbed"))

from hosts import Network, wait  # noqa: E402

PORT = 7070
MIB = 1 << 20
REGEX = "(tide|mill|pond).*(water|wheel).*(flour|storage)"
# Name, kernel, arguments, size of the input, kind of data. Programs are filters.
KERNELS = [("max", "max", [], 256 * MIB, "numbers"), ("grep", "grep", ["-c", "tide"], 256 * MIB, "text"),
           ("grep-regex", "grep", ["-c", "-i", REGEX], 256 * MIB, "text"), ("wordcount", "wordcount", [], 256 * MIB, "text"),
           ("base64", "base64", [], 96 * MIB, "text"), ("basenc", "basenc", ["--base16"], 64 * MIB, "text")]
BUILTIN = {"max", "grep", "wordcount"}
# What makes one result of results of parts.
JOIN = {"max": lambda parts: max(map(float, parts)), "grep": lambda parts: sum(map(int, parts)),
        "wordcount": lambda parts: [sum(column) for column in zip(*(map(int, part.split()) for part in parts))]}


def say(text):
    print(text, file=sys.stderr, flush=True)


class Testbed:
    """A client, a server and one element."""

    def __init__(self, options, element_cores):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="tidemill-offload-")
        self.network = Network("offload", options.rate_mbit)
        try:
            self.client = self.network.add("client", options.client_cores)
            self.server = self.network.add("server", 0.5)
            self.element = self.network.add("element0", element_cores)
            self.url = f"https://{self.server.address}:{PORT}"
            self.token = f"{self.folder}/server/token"
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self):
        self.server.start(self.options.binary, "server", "--folder", f"{self.folder}/server", "--listen",
                          f"{self.server.address}:{PORT}", log=f"{self.folder}/server.log")
        wait("the server", lambda: os.path.exists(self.token))
        self.element.start(self.options.binary, "--server", self.url, "--token-file", self.token, "element", "--id", "0",
                           "--folder", f"{self.folder}/element0", "--listen", f"{self.element.address}:{PORT}",
                           "--cores", "1", log=f"{self.folder}/element0.log")
        wait("the element", lambda: any(e["up"] for e in self.ask("status")["elements"]))

    def tidemill(self, *args):
        return self.client.call(self.options.binary, "--dir", self.folder, "--server", self.url, "--token-file", self.token,
                                *args)

    def ask(self, *args):
        return json.loads(self.tidemill("--json", *args))

    def close(self):
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def make(path, kind, size):
    """Data like that of `tidemill bench kernel`: random numbers, or lines of words."""
    block = os.urandom(MIB)
    with open(path, "wb") as file:
        if kind == "numbers":  # doubles between 1 and 2
            block = b"".join(block[i:i + 6] + b"\xf0\x3f" for i in range(0, MIB, 8))
        else:
            words = [b"tide", b"mill", b"pond", b"and", b"the", b"of", b"water", b"wheel", b"grinds", b"flour", b"storage",
                     b"burst", b"drain", b"element", b"kernel", b"analysis"]
            block = b"".join(words[byte & 15] + (b"\n" if byte >> 4 == 0 else b" ") for byte in block)[:MIB]
        for _ in range(size // MIB):
            file.write(block)


class Case:
    """One kernel over one file."""

    def __init__(self, bed, name, kernel, args, size, kind):
        self.bed, self.name, self.kernel, self.args, self.size, self.kind = bed, name, kernel, args, size, kind
        self.local = f"{bed.folder}/made"
        make(self.local, kind, size)
        bed.tidemill("-q", "put", "--element", "0", self.local, f"/{name}-input")
        self.number = 0

    def on_host(self, source, out):
        """Moves the input to the client and runs the kernel there."""
        data = f"{self.bed.folder}/moved"
        self.bed.tidemill("-q", "get", source, data)
        if self.kernel in BUILTIN:
            self.bed.tidemill("-q", "kernel", "test", self.kernel, data, "--output", os.path.basename(out), "--keep",
                              os.path.dirname(out), "--", *self.args)
        else:
            self.bed.client.call("bash", "-c", 'exec "${@:3}" < "$1" > "$2"', "run", data, out, self.kernel, *self.args)
        os.unlink(data)

    def on_element(self, source, out):
        """Runs the kernel on the element and moves the result to the client."""
        self.number += 1
        result = f"{self.name}-result-{self.number}"
        source = source.lstrip("/")
        streams = "" if self.kernel in BUILTIN else f'stdin = "{source}"; stdout = "{result}";'
        args = ", ".join(f'"{arg}"' for arg in self.args)
        script = f"{self.bed.folder}/job-{self.number}.conf"
        with open(script, "w") as file:
            file.write(f'name = "{self.kernel}"; workdir = "/"; tasks = ( {{ name = "run"; kernel = "{self.kernel}"; '
                       f'args = [ {args} ]; input = [ "{source}" ]; output = [ "{result}" ]; {streams} element = 0; }} );')
        job = self.bed.ask("submit", "--no-cache", script)["job"]
        self.bed.tidemill("-q", "watch", str(job))
        self.bed.tidemill("-q", "get", f"/{result}", out)

    def on_both(self, outs):
        """The element's part and the host's, at once. Joining the results is not in the time."""
        errors = []

        def guarded(work, *args):
            try:
                work(*args)
            except RuntimeError as error:
                errors.append(error)
        other = threading.Thread(target=guarded, args=(self.on_element, f"/{self.name}-here", outs[0]))
        other.start()
        guarded(self.on_host, f"/{self.name}-there", outs[1])
        other.join()
        if errors:
            raise errors[0]

    def put_parts(self, share):
        """The input as two files, cut between two numbers or two lines."""
        cut = int(self.size * share) // 8 * 8
        with open(self.local, "rb") as file:
            if self.kind == "text":
                file.seek(cut)
                file.readline()
                cut = file.tell()
                file.seek(0)
            for name, length in (("here", cut), ("there", self.size - cut)):
                with open(f"{self.local}-{name}", "wb") as part:
                    shutil.copyfileobj(Limited(file, length), part, MIB)
                self.bed.tidemill("-q", "put", "--element", "0", f"{self.local}-{name}", f"/{self.name}-{name}")

    def measure(self, runs, split):
        """Seconds of each placement, one list each."""
        out = f"{self.bed.folder}/out"
        os.makedirs(out, exist_ok=True)
        places = {"host": lambda: self.on_host(f"/{self.name}-input", f"{out}/host"),
                  "element": lambda: self.on_element(f"/{self.name}-input", f"{out}/element")}
        if split is not None:
            self.put_parts(split)
            places["split"] = lambda: self.on_both([f"{out}/here", f"{out}/there"])
        times = {place: [] for place in places}
        for _ in range(runs):
            for place, run in places.items():
                start = time.monotonic()
                run()
                times[place].append(time.monotonic() - start)
            if digest(f"{out}/host") != digest(f"{out}/element"):
                raise SystemExit(f"{self.kernel}: the results of host and element differ")
            if split is not None and joined(self.kernel, out, "here", "there") != joined(self.kernel, out, "host"):
                raise SystemExit(f"{self.kernel}: the results of the parts do not make that of the whole")
        result_bytes = os.path.getsize(f"{out}/host")
        shutil.rmtree(out)
        return times, result_bytes


def joined(kernel, folder, *names):
    parts = []
    for name in names:
        with open(f"{folder}/{name}") as file:
            parts.append(file.read())
    return JOIN[kernel](parts)


class Limited:
    """The next `left` bytes of a file."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def read(self, count):
        piece = self.file.read(min(count, self.left))
        self.left -= len(piece)
        return piece


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def one(bed, options, element_cores, name, kernel, args, size, kind):
    say(f"element of {element_cores} cores: measuring {name}")
    bed.tidemill("-q", "bench", "kernel", kernel, "--elements", "--data", kind, "--", *args)
    case = Case(bed, name, kernel, args, size, kind)
    advice = bed.ask("plan", "offload", "--no-load", kernel, f"/{name}-input")
    predicted = {choice["choice"]: choice for choice in advice["choices"] if choice["feasible"]}
    share = predicted["split"]["element_share"] if advice["best"] == "split" else None
    say(f"element of {element_cores} cores: running {name}; the advice is: {advice['best']}")
    times, result_bytes = case.measure(options.runs, share)
    measured = {place: statistics.median(runs) for place, runs in times.items()}
    fastest = min(measured, key=measured.get)
    rounded = lambda values: {key: round(value, 3) for key, value in values.items()}
    return {"what": "advice against measurement", "name": name, "kernel": kernel, "args": args, "bytes": size,
            "result_bytes": result_bytes, "element_cores": element_cores, "client_cores": options.client_cores, "rate_mbit": options.rate_mbit,
            "result_wanted_on": "host", "host_mb_per_sec": round(advice["host_bytes_per_sec"] / 1e6, 1),
            "element_mb_per_sec": round(advice["element_bytes_per_sec"] / 1e6, 1),
            "link_mb_per_sec": round(advice["link_bytes_per_sec"] / 1e6, 1),
            "predicted_s": rounded({place: choice["seconds"] for place, choice in predicted.items()}),
            "predicted_joules": rounded({place: choice["joules"] for place, choice in predicted.items()}),
            "measured_s": rounded(measured), "all_s": {place: [round(t, 3) for t in runs] for place, runs in times.items()},
            "error": rounded({place: predicted[place]["seconds"] / measured[place] - 1 for place in measured}),
            "advice": advice["best"], "fastest": fastest, "right": advice["best"] == fastest, "reason": advice["reason"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--element-cores", default="1,0.25", help="settings to run, each in turn")
    parser.add_argument("--client-cores", type=float, default=1.0)
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kernels", default=",".join(name for name, *_ in KERNELS))
    parser.add_argument("--binary", type=os.path.abspath, default=os.path.join(HERE, "../target/release/tidemill"))
    options = parser.parse_args()
    for cores in map(float, options.element_cores.split(",")):
        bed = Testbed(options, cores)
        try:
            for kernel in KERNELS:
                if kernel[0] in options.kernels.split(","):
                    print(json.dumps(one(bed, options, cores, *kernel)), flush=True)
        finally:
            bed.close()


if __name__ == "__main__":
    main()
