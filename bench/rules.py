#!/usr/bin/env python3
"""A rule that counts the words of 10 000 new files, against `find | xargs -P2 wc`; and the delay of an idle rule.

  cargo build --release && bench/rules.py [--files 10000] [--rounds 3] [--delays 200]

Sandbox and lineage are on. Throughput: a directory of files is moved into the rule's directory, so that the time excludes the writer.
The time ends with the last rule run. The peer runs one `wc` for each file and writes its output to a file, as the rule does. Delay:
files are sealed in sequence on an idle cluster; the delay is the time from the seal, as the server records it, to the start of the
label on the node. Prints JSON lines; `ratio` is ours to the peer in files per second.
"""
import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

from local_cluster import Cluster

RULE = """
name = "count"; workdir = "/w"; pattern = "in/*.txt"; cache = false;
task = { kernel = "wordcount"; output = [ "out/{stem}" ]; };
"""
TEXT = "".join(f"line {number} of a file that somebody has dropped\n" for number in range(20))


def fill(directory, count):
    os.makedirs(directory)
    for number in range(count):
        with open(f"{directory}/{number}.txt", "w") as file:
            file.write(f"{number}\n{TEXT}")


def peer(count):
    with tempfile.TemporaryDirectory() as directory:
        fill(f"{directory}/in", count)
        os.mkdir(f"{directory}/out")
        start = time.perf_counter()
        command = f"find {directory}/in -name '*.txt' | xargs -P2 -I@ sh -c 'wc < \"$1\" > {directory}/out/$(basename \"$1\")' sh @"
        shell = time.perf_counter()
        subprocess.run(command, shell=True, check=True)
        with_output = time.perf_counter() - shell
        start = time.perf_counter()
        subprocess.run(f"find {directory}/in -name '*.txt' | xargs -P2 -n1 wc > /dev/null", shell=True, check=True)
        return time.perf_counter() - start, with_output


def add(cluster):
    path = os.path.join(cluster.directory, "count.rule")
    with open(path, "w") as file:
        file.write(RULE)
    cluster.json("rule", "create", path)


def rule_runs(cluster):
    return cluster.json("rule", "show", "count")["rule_runs"]


def ours(count):
    with Cluster(nodes=1, cores=2, mount=True) as cluster:
        os.makedirs(f"{cluster.mount_point}/w/staged")
        os.makedirs(f"{cluster.mount_point}/w/out")
        fill(f"{cluster.mount_point}/w/staged/in", count)
        add(cluster)
        # The remaining work of the last seals does not belong to the rule.
        time.sleep(2)
        start = time.perf_counter()
        os.rename(f"{cluster.mount_point}/w/staged/in", f"{cluster.mount_point}/w/in")
        while rule_runs(cluster).get("done", 0) < count:
            time.sleep(0.1)
        took = time.perf_counter() - start
        found = rule_runs(cluster)
        if found != {"done": count}:
            raise SystemExit(f"not all have ended well: {found}")
        database = sqlite3.connect(f"file:{cluster.directory}/server/server.db?mode=ro", uri=True)
        jobs = database.execute("SELECT count(*) FROM rule_job").fetchone()[0]
        return took, jobs


def delays(count):
    with Cluster(nodes=1, cores=2, mount=True) as cluster:
        os.makedirs(f"{cluster.mount_point}/w/in")
        add(cluster)
        for number in range(count):
            with open(f"{cluster.mount_point}/w/in/{number}.txt", "w") as file:
                file.write(TEXT)
            time.sleep(0.05)
        while rule_runs(cluster).get("done", 0) < count:
            time.sleep(0.1)
        database = sqlite3.connect(f"file:{cluster.directory}/server/server.db?mode=ro", uri=True)
        rows = database.execute("SELECT (task.start - sealed_at) / 1e6, (task.kernel_start - sealed_at) / 1e6 FROM rule_run "
                                "JOIN task ON task.task = rule_run.task JOIN version ON version.object = rule_run.object")
        return list(zip(*rows.fetchall()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", type=int, default=200)
    args = parser.parse_args()
    for number in range(args.rounds):
        took, jobs = ours(args.files)
        plain, with_output = peer(args.files)
        print(json.dumps({"bench": "rules", "round": number, "files": args.files, "jobs": jobs,
                          "files_per_sec": round(args.files / took, 1), "peer": "find | xargs -P2 -n1 wc",
                          "peer_files_per_sec": round(args.files / plain, 1), "ratio": round(plain / took, 3),
                          "goal": 0.3, "ratio_with_outputs": round(with_output / took, 3)}), flush=True)
    if args.delays:
        begun, running = delays(args.delays)
        for what, values, goals in (("label", begun, (5, 20)), ("kernel", running, None)):
            ordered = sorted(values)
            print(json.dumps({"bench": "rules", "what": f"delay, seal to start of {what}", "files": len(ordered),
                              "p50_ms": round(statistics.median(ordered), 2),
                              "p99_ms": round(ordered[int(len(ordered) * 0.99) - 1], 2), "goals_ms": goals}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
