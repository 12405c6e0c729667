#!/usr/bin/env python3
"""Measures every claim in a short form and prints one table; `make bench` runs this script.

  make bench                                     # builds, then runs all; about ten minutes on two idle cores
  bench/short.py [NAME ...] [--install] [--list]

The script runs each script of this directory with small parameters, in sequence. The --help of a script describes its measurement,
and bench/README.md has the claims. Measurements without their peer are skipped and reported: `--install` puts the Python packages
of peers into bench/out/venv (without the flag nothing is installed); programs are packages of Debian. The ratios of short runs have
more noise than those in results/, which are from whole runs; a goal that is missed by little proves nothing.

JSON lines are written to bench/out/short.jsonl. Ends with 1 if a script failed, regardless of the ratios. Needs root.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
OUT = os.path.join(HERE, "out")
VENV = os.path.join(OUT, "venv/short")
TESTBED = os.path.join(OUT, "montage")
# Placeholder for the interpreter in commands.
PYTHON = "python"
# Interpreter with the modules of Debian's packages.
DEBIAN_PYTHON = "/usr/bin/python3"
# Package names of modules.
PACKAGES = {"cv2": "opencv-python-headless", "sklearn": "scikit-learn"}


def rate(line):
    """Returns our value, the peer's value and their unit from a line of a script."""
    for ours, peer, unit in (("ours_GBps", "peer_GBps", "GB/s"), ("ours_per_s", "peer_per_s", "/s"),
                             ("gb_per_s", "peer_gb_per_s", "GB/s"), ("mb_per_s", "peer_mb_per_s", "MB/s"),
                             ("ours_s", "peer_s", "s")):
        if ours in line:
            return f"{line[ours]:g}", f"{line[peer]:g}", unit
    return "", "", ""


def plain(lines):
    for line in lines:
        if "left_out" in line:
            yield line["what"], f"skipped: {line['left_out']}", "", "", "", None
        elif "ratio" in line:
            ours, peer, unit = rate(line)
            yield line["what"], line["peer"], f"{ours} {unit}".strip(), f"{peer} {unit}".strip(), line["ratio"], line.get("goal")


def tasks(lines):
    ours = next((line["tasks_per_s"] for line in lines if line["side"] == "ours"), "")
    for line in lines:
        if "ratio" in line:
            yield line["what"], line["side"], f"{ours} /s", f"{line['tasks_per_s']} /s", line["ratio"], line["goal"]


def maximum(lines):
    for line in lines:
        yield line["what"], "a copy and the kernel there", f"{line['inside_s']} s", f"{line['copy_out_s']} s", line["ratio"], None


def foreground(lines):
    for line in lines:
        what = f"p99 of {line['request']} {line['bytes'] >> 10} KiB {line['way']}, kernels on all cores"
        yield what, "no kernels", f"{line['idle_p99_us']} µs", f"{line['none_p99_us']} µs", line["ratio_idle"], None


def tls(lines):
    for line in lines:
        yield f"{line['what']} inside TLS", "plain", line["tls"], line["plain"], line["tls_to_plain"], None


def reductions(lines):
    for line in lines:
        rates = line["chunks_per_s"]
        what = f"sums of {line['case']} chunks of {line['mib']} MiB by URL, a second"
        yield what, "fetched, numpy", rates["reduced"], rates["fetched"], line["ratio"]["fetched"], None


def advisor(lines):
    for line in lines:
        what = f"advice for {line['kernel']} over {line['mib']} MiB, {line['programs']} programs and {line['jobs']} jobs at the same time"
        yield what, "all ways", line["advice"], line["best"], line["verdict"], "right or near"


def simulator(lines):
    for line in lines:
        what = f"simulating {line['tasks']} tasks on {line['nodes']} nodes"
        if "ratio" in line:
            yield what, "SimGrid", f"{line['ours_run_s']:.3g} s", f"{line['peer_run_s']:.3g} s", round(line["ratio"], 1), None
        elif "events_per_cpu_s" in line:
            yield f"{what}, {line['policy']}", "-", f"{line['events_per_cpu_s'] / 1e6:.2f} M events/s", "", "", None


def start(lines):
    plain_ms = next(line["median_ms"] for line in lines if line["what"].startswith("program, plain"))
    for line in lines:
        if "median_ms" in line:
            ratio = round(line["median_ms"] / plain_ms, 2)
            yield f"start: {line['what']}", "plain fork and exec", f"{line['median_ms']} ms", f"{plain_ms} ms", ratio, None


def heartbeat(lines):
    whole = lines[-1]
    for peer in ("neurokit2", "wfdb xqrs"):
        ours, theirs = (f"{whole[side]['sensitivity']}, {whole[side]['precision']}" for side in ("ours", peer))
        yield "R peaks found, right; ratio of CPU time", peer, ours, theirs, whole[f"cpu_ratio to {peer}"], None


def testbed(lines):
    base = next((line for line in lines if line["mode"] == "offline"), None)
    for line in lines:
        if base and line is not base:
            yield f"{line['workload']} under {line['mode']}", "offline", f"{line['wall_s']:.1f} s", f"{base['wall_s']:.1f} s", round(
                base["wall_s"] / line["wall_s"], 2), None


def mpi_shared(lines):
    for line in lines:
        yield line["what"], "-", f"{line.get('write_GBps', '')} GB/s", "", "right" if line["right"] else "FAILED", None


def truth(lines):
    for line in lines:
        yield f"{line['workload']} under {line['policy']}, predicted from another run", "measured", f"{line['predicted_s']:.2f} s", (
            f"{line['measured_s']:.2f} s"), f"{line['error_percent']:+.1f} %", "±10 %"


class Claim:
    """Script with its short parameters and its requirements. `results` is the file with its lines, if it prints a table;
    `left_out` has the missing peers with the reasons."""

    def __init__(self, name, command, rows=plain, modules=(), needs=(), results=None, left_out=()):
        self.name, self.command, self.rows, self.modules, self.needs = name, command, rows, modules, needs
        self.results, self.left_out = results, left_out

    def missing(self, python):
        """Returns the reason why the script can't run here, if there is one."""
        for what, there in self.needs:
            if not there():
                return what
        if self.modules and not has(python, *self.modules):
            return f"no {', '.join(self.modules)} in Python (bench/short.py --install)"
        return None


def has(python, *modules):
    code = "import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in sys.argv[1:]))"
    return subprocess.run([python, "-c", code, *modules]).returncode == 0


def peers_of_tasks():
    """Returns make and the peers whose environment `tasks.py` made before; and the skipped peers."""
    others = ("hyperqueue", "dask", "snakemake")
    there = [name for name in others if os.path.exists(os.path.join(OUT, "venv", name))]
    left_out = [(name, "no environment of it (bench/tasks.py makes one)") for name in others if name not in there]
    return ",".join(["make", *there]), left_out


def claims():
    root = ("it needs root", lambda: os.geteuid() == 0)
    prepared = ("no workload (bench/testbed/prepare.sh montage bench/out/montage)", lambda: os.path.exists(TESTBED))
    fuse = ("no /dev/fuse", lambda: os.path.exists("/dev/fuse"))
    simgrid = os.path.exists("/usr/include/simgrid")
    no_simgrid = [] if simgrid else [("SimGrid", "it is not here (apt-get install g++ libsimgrid-dev)")]
    mpi = ("no MPI (apt-get install python3-mpi4py openmpi-bin)", lambda: shutil.which("mpirun") and has(DEBIAN_PYTHON, "mpi4py"))
    peers, no_peers = peers_of_tasks()
    short_advisor = os.path.join(OUT, "short-advisor")
    short_testbed, short_truth = os.path.join(OUT, "short-testbed"), os.path.join(OUT, "short-truth")
    return [
        Claim("mount", ["mount.py", "--rounds", "3", "--size-mib", "256", "--files", "3000"], needs=[root, fuse]),
        Claim("programs", ["programs.py", "--rounds", "3", "--files", "1000"], needs=[root, fuse]),
        Claim("striped", ["striped.py", "--rounds", "3", "--size-mib", "256"], needs=[root, fuse]),
        Claim("shared", ["shared.py", "--rounds", "3", "--size-mib", "256"], needs=[root, fuse]),
        Claim("mpi_shared", ["mpi_shared.py", "--quick"], mpi_shared, needs=[root, fuse, mpi]),
        Claim("replicas", ["replicas.py", "--rounds", "3", "--large", "16", "--small", "1000"], needs=[root, fuse]),
        Claim("tasks", ["tasks.py", "--tasks", "300", "--rounds", "3", "--peers", peers], tasks,
              needs=[("no make", lambda: shutil.which("make"))], left_out=no_peers),
        Claim("maximum", ["maximum.py", "--gib", "0.25", "--rounds", "3"], maximum, needs=[root, fuse]),
        Claim("advisor", ["advisor.py", "--rounds", "1", "--kernels", "max,base64", "--situations", "2,4,7,9", "--out", short_advisor],
              advisor, needs=[root], results=os.path.join(short_advisor, "advisor.jsonl")),
        Claim("foreground", ["foreground.py", "--rounds", "1", "--seconds", "0.7"], foreground, needs=[root, fuse]),
        Claim("tls", ["tls.py", "--rounds", "3", "--mib", "256"], tls, needs=[root]),
        Claim("reductions", ["reductions.py", "--rounds", "1", "--chunks", "100"], reductions, needs=[root], modules=("numpy",)),
        Claim("kernels", ["kernels/kernels.py", "--mib", "128", "--rounds", "3", "--python", PYTHON], modules=("numpy", "polars")),
        Claim("reshape", ["kernels/reshape.py", "--mib", "64", "--rounds", "3"], modules=("numpy", "cv2")),
        Claim("codecs", ["kernels/codecs.py", "--mib", "16", "--rounds", "3"]),
        Claim("cluster", ["kernels/cluster.py", "--mib", "32", "--rounds", "3"], modules=("numpy", "sklearn")),
        Claim("memory", ["kernels/memory.py", "--rounds", "5"], modules=("numpy", "cv2")),
        Claim("start", [f"{ROOT}/target/release/examples/kernel_start"], start, needs=[root]),
        Claim("heartbeat", ["kernels/heartbeat.py", "--seeds", "1"], heartbeat, modules=("neurokit2", "wfdb", "scipy")),
        Claim("testbed", ["testbed/testbed.py", TESTBED, "--modes", "offline,min-wait", "--out", short_testbed], testbed,
              needs=[root, prepared], results=os.path.join(short_testbed, "results.jsonl")),
        Claim("lost_node", ["lost_node.py", TESTBED, "--rounds", "1"], needs=[root, fuse, prepared]),
        Claim("truth", ["truth.py", TESTBED, "--nodes", "4", "--policies", "min-wait", "--out", short_truth], truth,
              needs=[root, prepared], results=os.path.join(short_truth, "truth.jsonl")),
        Claim("simulator", ["simulator.py", "--shapes", "1000x8,10000x100", "--peer-shapes", "1000x8" if simgrid else ""],
              simulator, left_out=no_simgrid),
    ]


def run(claim, python):
    """Runs the script, and returns its lines."""
    program, *args = (python if word is PYTHON else word for word in claim.command)
    command = [program, *args] if os.path.isabs(program) else [python, os.path.join(HERE, program), *args]
    if claim.results:
        # Existing measurements are not repeated.
        shutil.rmtree(os.path.dirname(claim.results), ignore_errors=True)
    environment = {**os.environ, "PATH": f"{os.path.dirname(python)}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    text = done.stdout
    if claim.results and os.path.exists(claim.results):
        with open(claim.results) as file:
            text = file.read()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return lines, None if done.returncode == 0 else done.stderr.strip().splitlines()[-1:]


def verdict(ratio, goal):
    if not isinstance(ratio, (int, float)) or not isinstance(goal, (int, float)):
        return ""
    return "" if ratio >= goal else "missed"


def show(rows):
    header = ("claim", "what", "peer", "ours", "peer's", "ratio", "goal", "")
    rows = [header, *([str(cell) if cell is not None else "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def install():
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    modules = sorted({module for claim in claims() for module in claim.modules})
    subprocess.run([f"{VENV}/bin/pip", "-q", "install", *(PACKAGES.get(module, module) for module in modules)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of claims (default: all)")
    parser.add_argument("--install", action="store_true", help="first install the peers' Python packages into bench/out/venv")
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    options = parser.parse_args()
    os.makedirs(OUT, exist_ok=True)
    if options.install:
        install()
    python = f"{VENV}/bin/python" if os.path.exists(f"{VENV}/bin/python") else sys.executable
    unknown = set(options.names) - {claim.name for claim in claims()}
    if unknown:
        parser.error(f"no such claim: {', '.join(sorted(unknown))}")
    rows, failed = [], False
    with open(os.path.join(OUT, "short.jsonl"), "w") as kept:
        for claim in claims():
            if options.names and claim.name not in options.names:
                continue
            missing = claim.missing(python)
            if options.list or missing:
                rows.append((claim.name, " ".join(claim.command[1:] if options.list else []),
                             f"skipped: {missing}" if missing else claim.command[0], "", "", "", "", ""))
                continue
            begun = time.monotonic()
            print(f"{claim.name} …", end=" ", file=sys.stderr, flush=True)
            lines, error = run(claim, python)
            print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
            for line in lines:
                kept.write(json.dumps({"claim": claim.name, **line}) + "\n")
            if error is not None:
                failed = True
                rows.append((claim.name, "FAILED", *(error or [""]), "", "", "", "", ""))
                continue
            rows += [(claim.name, what, peer, ours, theirs, ratio, goal, verdict(ratio, goal))
                     for what, peer, ours, theirs, ratio, goal in claim.rows(lines)]
            rows += [(claim.name, f"against {peer}", f"skipped: {why}", "", "", "", "", "") for peer, why in claim.left_out]
    show(rows)
    sys.exit(failed)


if __name__ == "__main__":
    main()
