#!/usr/bin/env python3
"""Built-in kernels against their peers, alternating in one run, from a warm page cache.

  cargo build --release -p tidemill-compute --example kernel_speed
  bench/kernels/kernels.py [--mib 512] [--rounds 9] [--only statistics|select|grep] [--dir bench/out/kernels]

Needs Debian's python3-venv. numpy and polars are installed into a temporary environment; ripgrep, if it is not installed, is
unpacked from Debian's package into the same directory. Prints a JSON line for each comparison: medians in GB/s, the median of the
rounds' ratios, the goal. Ours and the plain sum run in one process of `examples/kernel_speed.rs`; numpy and polars run in another
process, which maps the file. Each has one thread, and results are compared.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUR = "of=min,max,mean,stddev"

# Runs in the temporary environment: reads lines "library type file", and answers with seconds and a result.
PEERS = """
import os, sys, time
os.environ["POLARS_MAX_THREADS"] = "1"
import numpy as np, polars as pl
for line in sys.stdin:
    library, kind, name = line.split()
    start = time.perf_counter()
    values = np.memmap(name, kind, "r")
    if library == "numpy":
        found = values.min(), values.max(), values.mean(dtype="f8"), values.std(dtype="f8")
    else:
        series = pl.Series("x", values)
        x = pl.col("x")
        row = series.to_frame().select(x.min().alias("a"), x.max().alias("b"), x.mean().alias("c"), x.std(ddof=0).alias("d"))
        found = row.row(0)
    print(time.perf_counter() - start, *found, flush=True)
"""


class Process:
    """Process that answers each line with a line that begins with seconds."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        seconds, _, result = self.process.stdout.readline().strip().replace("\t", " ").partition(" ")
        return float(seconds), result


def write(path, size, piece):
    """Fills a file in large pieces: the size of pieces affects the speed of reads from its pages."""
    if path.exists() and path.stat().st_size == size:
        return
    with open(path, "wb", buffering=0) as file:
        for number in range(0, size, 8 << 20):
            file.write(piece(number)[:min(8 << 20, size - number)])


def fresh(path):
    """Rewrites a file in large pieces: pages that were read back from the disk are smaller, and slower to read."""
    copy = path.with_suffix(".new")
    with open(path, "rb", buffering=0) as old, open(copy, "wb", buffering=0) as new:
        while piece := old.read(8 << 20):
            new.write(piece)
        os.fsync(new.fileno())
    copy.rename(path)


def make_data(directory, python, size):
    """Makes normal, uniform and full-range random numbers, and text of random words."""
    script = f"""
import numpy as np
chance = np.random.default_rng(1)
def write(name, values):
    with open({str(directory)!r} + "/" + name, "wb", buffering=0) as file:
        data = memoryview(values.tobytes())
        for start in range(0, len(data), 8 << 20):
            file.write(data[start:start + (8 << 20)])
write("f64", chance.normal(5, 2, {size} // 8))
write("f32", chance.normal(5, 2, {size} // 4).astype("f4"))
write("i32", chance.integers(-2**31, 2**31, {size} // 4, dtype="i4"))
"""
    if any(not (directory / name).exists() or (directory / name).stat().st_size != size for name in ("f64", "f32", "i32")):
        subprocess.run([python, "-c", script], check=True)
    chance = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    words = ["".join(chance.choice(letters[:8 + 18 * (number % 2)]) for _ in range(chance.randint(2, 10))) for number in range(3000)]

    def text():
        # About one line in five hundred has the literal, one in fifty has a date.
        lines, length = [], 0
        while length < 8 << 20:
            line = " ".join(chance.choices(words, k=10))
            if chance.random() < 0.002:
                line += " tidemill"
            if chance.random() < 0.02:
                line += f" 20{chance.randint(10, 99)}-0{chance.randint(1, 9)}-1{chance.randint(0, 9)}"
            lines.append(line)
            length += len(line) + 1
        return ("\n".join(lines) + "\n").encode()

    pieces = {}

    def piece(number):
        # Eight pieces are repeated, as random words take long to make.
        turn = number // (8 << 20) % 8
        if turn not in pieces:
            pieces[turn] = text()
        return pieces[turn]

    write(directory / "text", size, piece)


def compare(what, size, ours, peer, peer_name, rounds, goal, same=None):
    """Runs both sides in turn, and prints the ratio of their speeds."""
    times, ratios = ([], []), []
    for number in range(rounds + 1):
        mine, found = ours()
        theirs, wanted = peer()
        if same and not same(found, wanted):
            raise SystemExit(f"{what}: {found!r} is not {wanted!r}")
        if number == 0:
            continue  # loads the pages into the cache
        times[0].append(mine)
        times[1].append(theirs)
        ratios.append(theirs / mine)
    speed = [round(size / statistics.median(side) / 1e9, 2) for side in times]
    print(json.dumps({"what": what, "peer": peer_name, "bytes": size, "gb_per_s": speed[0], "peer_gb_per_s": speed[1],
                      "ratio": round(statistics.median(ratios), 2), "goal": goal}), flush=True)


def close(found, wanted):
    """Returns whether four statistics agree: ours are lines with names, separated by `; `."""
    mine = [float(part.split()[1]) for part in found.split("; ")]
    theirs = [float(word) for word in wanted.split()]
    return all(abs(a - b) <= 1e-6 * max(1.0, abs(b)) for a, b in zip(mine, theirs, strict=True))


def compare_statistics(directory, size, speed, peers, rounds):
    for kind, goals in (("i32", (0.9, 0.85)), ("f64", (0.9, 0.85)), ("f32", (0.8, 0.8))):
        path, dtype = directory / kind, f"dtype={kind}"
        fresh(path)
        for how, goal in zip(("map", "read"), goals):
            compare(f"four statistics of {kind}, {how}", size,
                    lambda: speed.ask(f"{how}\t{path}\tstats\t{dtype}\t{FOUR}"),
                    lambda: speed.ask(f"{how}\t{path}\tplain-sum\t{dtype}"), "plain sum", rounds, goal)
        for library, goal in (("numpy", 12), ("polars", 8)):
            code = {"i32": "i4", "f64": "f8", "f32": "f4"}[kind]
            compare(f"four statistics of {kind}", size,
                    lambda: speed.ask(f"map\t{path}\tstats\t{dtype}\t{FOUR}"),
                    lambda: peers.ask(f"{library} {code} {path}"), library, min(rounds, 3), goal, close)
    path = directory / "f64"
    fresh(path)
    compare("five statistics of f64 with linreg, map", size,
            lambda: speed.ask(f"map\t{path}\tstats\t{FOUR},linreg"),
            lambda: speed.ask(f"map\t{path}\tplain-sum\tdtype=f64"), "plain sum", rounds, None)


def compare_selections(directory, size, speed, rounds):
    done = set()
    for what, file, job in (
        ("count above a threshold, f64", "f64", "filter\tshow=count\tabove=7"),
        ("count above a threshold, f32", "f32", "filter\tdtype=f32\tshow=count\tabove=7"),
        ("count above a threshold, i32", "i32", "filter\tdtype=i32\tshow=count\tabove=7"),
        ("extrema, f64", "f64", "extrema"),
        ("extrema, f32", "f32", "extrema\tdtype=f32"),
        ("extrema, i32", "i32", "extrema\tdtype=i32"),
        ("wordcount", "text", "wordcount"),
        ("largest ten, f64", "f64", "topk"),
    ):
        goal = None if "ten" in what else 0.6
        plain = file if file != "text" else "i32"
        if file not in done:
            fresh(directory / file)
            done.add(file)
        for how in ("map", "read"):
            compare(f"{what}, {how}", size, lambda: speed.ask(f"{how}\t{directory / file}\t{job}"),
                    lambda: speed.ask(f"{how}\t{directory / file}\tplain-sum\tdtype={plain}"), "plain sum", rounds, goal)


def run(command, output):
    """Runs a peer that is a program."""
    start = time.perf_counter()
    with open(output, "wb") as file:
        subprocess.run(command, stdout=file, check=True, env={**os.environ, "LC_ALL": "C"})
    return time.perf_counter() - start, Path(output).read_text(errors="replace").split("\n")[0]


def compare_grep(directory, size, speed, rounds):
    ripgrep = shutil.which("rg") or str(unpacked_ripgrep(directory))
    text, output = directory / "text", directory / "found"
    fresh(text)
    for what, pattern in (("literal", "tidemill"), ("regex", r"20[0-9]+-0[1-4]-[0-9]+"), ("regex of letters", "[aeiou]{7}"),
                          ("whole words, any case", None)):
        ours = pattern or "-iw\tTIDEMILL"
        theirs = ["-iw", "TIDEMILL"] if pattern is None else ["-e", pattern]
        for name, command, goal in (("ripgrep", [ripgrep, "-c", "-j1", "-a", *theirs, str(text)], 1.5),
                                    ("GNU grep", ["grep", "-cE", *theirs, str(text)], 4)):
            compare(f"grep {what}", size, lambda: speed.ask(f"map\t{text}\tgrep\t{ours}"),
                    lambda: run(command, output), name, min(rounds, 5), goal, lambda a, b: a == b)


def unpacked_ripgrep(directory):
    program = directory / "ripgrep" / "usr" / "bin" / "rg"
    if not program.exists():
        subprocess.run(["apt-get", "download", "ripgrep"], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        package = next(directory.glob("ripgrep_*.deb"))
        subprocess.run(["dpkg", "-x", str(package), str(directory / "ripgrep")], check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=("statistics", "select", "grep"))
    parser.add_argument("--prepare", action="store_true", help="make data and environment, without a measurement")
    parser.add_argument("--dir", type=Path, default=ROOT / "bench" / "out" / "kernels")
    parser.add_argument("--python", type=Path, help="interpreter with numpy and polars (default: that of a new environment)")
    options = parser.parse_args()
    directory, size = options.dir.resolve(), options.mib << 20
    directory.mkdir(parents=True, exist_ok=True)
    python = options.python or directory / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True)
        subprocess.run([python, "-m", "pip", "-q", "install", "numpy", "polars"], check=True)
    make_data(directory, python, size)
    if options.prepare:
        return
    speed = Process([str(ROOT / "target" / "release" / "examples" / "kernel_speed")])
    if options.only in (None, "statistics"):
        peers = Process([str(python), "-c", PEERS])
        compare_statistics(directory, size, speed, peers, options.rounds)
    if options.only in (None, "select"):
        compare_selections(directory, size, speed, options.rounds)
    if options.only in (None, "grep"):
        compare_grep(directory, size, speed, options.rounds)


if __name__ == "__main__":
    main()
