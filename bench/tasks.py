#!/usr/bin/env python3
"""1 000 tasks that run `true`: ours, with sandbox and lineage on, against make -j2, HyperQueue, Dask and Snakemake.

  cargo build --release && bench/tasks.py [--tasks 1000] [--rounds 3] [--peers make,hyperqueue,dask,snakemake]

The time of each side runs from the submission to the last result. Servers and daemons are started before (make and Snakemake have
none). Rounds alternate. No files are removed before the end: ext4 is slow for minutes after many removals of inodes, which would slow
the next side. Prints JSON lines; `ratio` is ours to the peer in tasks per second. The peers are installed from PyPI into a virtual
environment under bench/out.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from local_cluster import Cluster

HERE = os.path.dirname(os.path.abspath(__file__))
VENVS = os.path.join(HERE, "out/venv")
PACKAGES = {"hyperqueue": ["hyperqueue"], "dask": ["dask", "distributed"], "snakemake": ["snakemake"]}
GOALS = {"make": 0.5, "hyperqueue": 2.0, "dask": 0.0, "snakemake": 0.0}

HYPERQUEUE = """
import sys, time
from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
count = int(sys.argv[1])
with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=2))
    client = cluster.client()
    def once():
        job = Job()
        for _ in range(count):
            job.program(["/bin/true"])
        client.wait_for_jobs([client.submit(job)])
    warm = Job(); warm.program(["/bin/true"]); client.wait_for_jobs([client.submit(warm)])
    start = time.perf_counter(); once(); print(time.perf_counter() - start)
"""
DASK = """
import subprocess, sys, time
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        run = lambda number: subprocess.run(["/bin/true"]).returncode
        client.gather(client.map(run, range(4), pure=False))
        start = time.perf_counter()
        client.gather(client.map(run, range(int(sys.argv[1])), pure=False))
        print(time.perf_counter() - start)
"""


def python(peer):
    venv = os.path.join(VENVS, peer)
    if not os.path.exists(venv):
        print(f"installing {peer}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([f"{venv}/bin/pip", "-q", "install", *PACKAGES[peer]], check=True)
    return f"{venv}/bin/python"


def script(peer, source, count, directory):
    path = os.path.join(directory, "peer.py")
    with open(path, "w") as file:
        file.write(source)
    done = subprocess.run([python(peer), path, str(count)], check=True, capture_output=True, text=True, cwd=directory)
    return float(done.stdout.strip().splitlines()[-1])


def make(count, directory):
    names = " ".join(f"t{number}" for number in range(count))
    with open(f"{directory}/Makefile", "w") as file:
        # make runs a recipe line without shell syntax directly; usually `touch` would record a result.
        file.write(f"all: {names}\n{names}:\n\t@/bin/true\n.PHONY: all {names}\n")
    start = time.perf_counter()
    subprocess.run(["make", "-j2", "-s", "all"], cwd=directory, check=True)
    return time.perf_counter() - start


def snakemake(count, directory):
    executable = os.path.join(os.path.dirname(python("snakemake")), "snakemake")
    with open(f"{directory}/Snakefile", "w") as file:
        file.write(f"rule all:\n    input: expand('o/{{i}}', i=range({count}))\n"
                   "rule one:\n    output: touch('o/{i}')\n    shell: '/bin/true'\n")
    start = time.perf_counter()
    subprocess.run([executable, "-j2", "-q", "all", "--nocolor"], cwd=directory, check=True, capture_output=True)
    return time.perf_counter() - start


PEERS = {"make": make, "hyperqueue": lambda count, directory: script("hyperqueue", HYPERQUEUE, count, directory),
         "dask": lambda count, directory: script("dask", DASK, count, directory), "snakemake": snakemake}


def ours(cluster, count, number):
    tasks = ",\n".join(f'{{ name = "t{i}"; kernel = "/bin/true"; input = []; output = [ "o{i}" ]; stdout = "o{i}"; }}'
                       for i in range(count))
    text = f'name = "true"; workdir = "/bench{number}"; tasks = (\n{tasks}\n);\n'
    start = time.perf_counter()
    job = cluster.submit(text)
    seconds = time.perf_counter() - start
    if job["state"] != "done":
        raise SystemExit(f"our job ended {job['state']}")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default=",".join(PEERS))
    options = parser.parse_args()
    peers = options.peers.split(",")
    for peer in set(peers) & set(PACKAGES):
        python(peer)
    times = {peer: [] for peer in ["ours", *peers]}
    with Cluster(nodes=1, cores=2) as cluster, tempfile.TemporaryDirectory() as directory:
        ours(cluster, 20, "warm")
        for number in range(options.rounds):
            times["ours"].append(ours(cluster, options.tasks, number))
            for peer in peers:
                times[peer].append(PEERS[peer](options.tasks, tempfile.mkdtemp(dir=directory)))
    rate = {side: options.tasks / statistics.median(seconds) for side, seconds in times.items()}
    print(json.dumps({"what": "tasks true", "side": "ours", "tasks_per_s": round(rate["ours"], 1)}))
    for peer in peers:
        ratio = statistics.median(theirs / mine for mine, theirs in zip(times["ours"], times[peer]))
        print(json.dumps({"what": "tasks true", "side": peer, "tasks_per_s": round(rate[peer], 1), "ratio": round(ratio, 2),
                          "goal": GOALS[peer], "met": ratio >= GOALS[peer]}))


if __name__ == "__main__":
    main()
