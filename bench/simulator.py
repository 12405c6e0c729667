#!/usr/bin/env python3
"""Speed of the planning simulator, alone and compared with SimGrid on the same workflows with the same placement.

  bench/simulator.py [--shapes 1000x8,10000x8,100000x8,100000x100,100000x1000] [--peer-shapes 10000x100,100000x1000]

Workflows are layers of tasks, made from a seed and read from WfFormat files. Each shape (tasks x nodes) and policy has a line of
JSON: both counts of events, wall-clock and processor seconds, events per second on one core, and the peak memory of reading and
simulating.

The peer is SimGrid (Debian: libsimgrid-dev, g++), the base of WRENCH, by its interface for DAGs (simgrid/peer.cpp). It has the same
tasks, hosts and links, no devices, and every task on the host that our run under round-robin chose. Ours makes that choice, queues
tasks at cores and transfers the first inputs to them. SimGrid only executes the plan: tasks of a host share its cores, and there are
no inputs from before. Without SimGrid this part is skipped with a message.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
OUT = os.path.join(HERE, "out")
OURS = os.path.join(ROOT, "target/release/examples/simulate_large")
POLICIES = ["round-robin", "random", "input-locality", "min-wait", "write-amplification", "hybrid", "advised"]


def shapes(text):
    return [tuple(int(number) for number in shape.split("x")) for shape in text.split(",") if shape]


def workflow(tasks):
    path = os.path.join(OUT, f"layers-{tasks}.json")
    if not os.path.exists(path):
        subprocess.run([OURS, "--tasks", str(tasks), "--write", path], check=True)
    return path


def ours(tasks, nodes, policy, *more):
    command = [OURS, "--read", workflow(tasks), "--nodes", str(nodes), "--policy", policy, *more]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def build_peer():
    if not shutil.which("g++"):
        return None
    peer = os.path.join(OUT, "simgrid-peer")
    source = os.path.join(HERE, "simgrid/peer.cpp")
    done = subprocess.run(["g++", "-O2", "-std=c++17", source, "-lsimgrid", "-o", peer], capture_output=True, text=True)
    return peer if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shapes, default="1000x8,10000x8,100000x8,100000x100,100000x1000")
    parser.add_argument("--peer-shapes", type=shapes, default="10000x100,100000x1000")
    parser.add_argument("--patience", type=float, default=600, help="maximum seconds for the peer")
    options = parser.parse_args()
    os.makedirs(OUT, exist_ok=True)
    build = ["cargo", "build", "--release", "--locked", "--quiet", "-p", "tidemill-plan", "--example", "simulate_large"]
    subprocess.run(build, check=True, cwd=ROOT)
    for tasks, nodes in options.shapes:
        for policy in POLICIES:
            print(json.dumps(ours(tasks, nodes, policy)), flush=True)
    peer = build_peer()
    if options.peer_shapes and peer is None:
        sys.exit("SimGrid is not here (apt-get install g++ libsimgrid-dev): no peer was run")
    for tasks, nodes in options.peer_shapes:
        placed = os.path.join(OUT, f"placed-{tasks}x{nodes}.txt")
        mine = ours(tasks, nodes, "round-robin", "--placed", placed)
        try:
            done = subprocess.run([peer, placed], check=True, capture_output=True, text=True, timeout=options.patience)
        except subprocess.TimeoutExpired:
            print(json.dumps({"bench": "simgrid", "tasks": tasks, "nodes": nodes, "ours_run_s": mine["run_s"],
                              "peer_run_s_at_least": options.patience}), flush=True)
            continue
        theirs = json.loads(done.stdout)
        print(json.dumps({"bench": "simgrid", "tasks": tasks, "nodes": nodes, "ours_run_s": mine["run_s"],
                          "ours_makespan_s": mine["makespan_s"], "peer_run_s": theirs["run_s"],
                          "peer_makespan_s": theirs["makespan_s"], "peer_activities": theirs["activities"],
                          "ratio": theirs["run_s"] / mine["run_s"]}), flush=True)


if __name__ == "__main__":
    main()
