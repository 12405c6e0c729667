#!/usr/bin/env python3
"""A job while a node is killed and stays offline, with two replicas of all files, against the same undisturbed job.

  bench/testbed/prepare.sh montage bench/out/montage
  cargo build --release && bench/lost_node.py [bench/out/montage] [--rounds 3] [--replicas 2] [--nodes 4]

Clusters are those of the testbed: hosts in network namespaces, each on its own link. Rounds of both alternate, each on a new cluster
whose inputs have their replicas at the submission of the job. After half the time of the undisturbed run, all processes of one
node's host are killed, in each round of another host. Prints a JSON line for each round, with the number of tasks that each
node finished, and one line for all rounds. `ratio` is the undisturbed time to the disturbed time: 0.77 is 1.3 times as long.
With three of four nodes the ratio can't exceed 0.86, and the work of the lost node first waits for --node-timeout. Ends
with 1 if a run failed or its result differs by a byte. Needs root.
"""
import argparse
import collections
import hashlib
import json
import os
import re
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]
import testbed  # noqa: E402
from hosts import wait  # noqa: E402
from local_cluster import BINARY  # noqa: E402
from mount import Bench  # noqa: E402

LONGER_AT_MOST = 1.3


def run(options, directory, lost=None, after_s=0.0):
    """Runs the job on a new cluster, and kills the node `lost` some time after the start."""
    flags = ("--replicas", str(options.replicas), "--node-timeout", f"{options.node_timeout}s")
    cluster = testbed.Cluster(options, os.path.join(directory, "cluster"), flags)
    try:
        cluster.fill(os.path.join(options.workload, "data"))
        wait("the replicas of the inputs", lambda: cluster.ask("status")["replicas"]["short"] == 0)
        script = os.path.join(options.workload, "job.toml")
        job = str(cluster.ask("submit", "--no-cache", script, "--policy", options.policy)["job"])
        if lost is not None:
            time.sleep(after_s)
            cluster.nodes[lost].kill()
        state = ended(cluster, job, options.give_up)
        result = os.path.join(directory, "result")
        with open(script, encoding="utf-8") as file:
            workdir = re.search(r'^workdir = "(.*)";', file.read(), re.M).group(1)
        cluster.tidemill("get", f"{workdir}/{options.result}", result)
        with open(result, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        return {"s": (state["ended"] - state["submitted"]) / 1e9, "digest": digest,
                "tasks": dict(collections.Counter(task["node"] for task in state["tasks"]))}
    finally:
        cluster.remove()


def ended(cluster, job, give_up_s):
    for _ in range(int(give_up_s / 0.2)):
        state = cluster.ask("job", "show", job)
        if state["state"] == "done":
            return state
        if state["state"] not in ("running", "waiting"):
            raise SystemExit(f"the job: {state['state']}\n{cluster.tidemill('job', 'logs', job)}")
        time.sleep(0.2)
    left = {task["name"]: task["state"] for task in state["tasks"] if task["state"] != "done"}
    raise SystemExit(f"the job is not done after {give_up_s} s: {left}\n{cluster.tidemill('job', 'explain', job)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", type=os.path.abspath, default=os.path.join(HERE, "out/montage"))
    parser.add_argument("--result", default="mosaic.fits", help="file to compare, in the job's workdir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--node-timeout", type=int, default=10, help="flag of the server, in seconds")
    parser.add_argument("--policy", default="min-wait")
    parser.add_argument("--client-cores", type=float, default=1.0)
    parser.add_argument("--node-cores", type=float, default=0.25)
    parser.add_argument("--server-cores", type=float, default=0.5, help="cores of the server, including the server cores of the cluster")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--give-up", type=float, default=600, help="maximum seconds for a job")
    parser.add_argument("--quick", action="store_true", help="one round on faster nodes, with a node timeout of 2 s")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.node_cores, options.server_cores, options.node_timeout, options.give_up = 1, 1.0, 1.0, 2, 60
    times, digests = {"ours": [], "peer": []}, set()
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-") as directory:
            whole = run(options, directory)
            lost = run(options, directory, number % options.nodes, whole["s"] / 2)
        print(json.dumps({"round": number, "undisturbed": whole, "lost": lost}), flush=True)
        times["ours"].append(lost["s"]), times["peer"].append(whole["s"])
        digests |= {whole["digest"], lost["digest"]}
    name = f"{os.path.basename(options.workload)}, {options.replicas} replicas, 1 of {options.nodes} nodes killed half-way"
    Bench.print(name, "none killed", times, 0, 0, round(1 / LONGER_AT_MOST, 3), same_bytes=len(digests) == 1)
    return len(digests) != 1


if __name__ == "__main__":
    sys.exit(main())
