#!/usr/bin/env python3
"""Accuracy of the simulator for real runs: makespan and transferred bytes, on clusters of 1 and 4 nodes, under each policy.

  bench/testbed/prepare.sh montage out/montage; bench/testbed/prepare.sh keywords out/keywords
  cargo build --release && bench/truth.py out/montage out/keywords [--nodes 1,4] [--policies ...]

Clusters are those of the testbed: hosts in network namespaces, each with its own link and a share of the processor. Every run has a
new cluster with copied inputs, and leaves a trace (`tidemill job export-trace`). Right before each run, a run under min-wait on the
largest cluster is its calibration: the prediction takes the times of tasks and transfers from the calibration only
(`tidemill plan compare RUN --times-of CALIBRATION`). The column replay is the error with the run's own times, which is the error of
the simulator itself. With --runs all measurements are repeated, and the table has medians. Shared processors run the same kernel
up to a third slower at some times, even minutes apart. The column cpu shows this effect: the processor time of the same kernels in
the run, relative to the calibration, which no prediction can know. "at speed" is the error with the run times of the calibration
scaled by this factor.

With --local, clusters are those of `tidemill up` instead: processes of one machine that all nodes share, one core each, without
links and without server cores (so without hybrid). Then calibrations use as many nodes as there are processors.

A run with an existing trace is not measured again, so runs can be made one by one; --predict-only measures nothing. The policy random
uses a seed of the server: it is predicted by the median over 21 seeds. Needs root. Prints a table; OUT/truth.jsonl has a line for each
run.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]
import testbed  # noqa: E402

POLICIES = ["round-robin", "random", "input-locality", "min-wait", "write-amplification", "hybrid"]
CALIBRATION = "calibration-for-"
GOAL_PERCENT = 10


def trace(options, workload, nodes, run, number):
    return os.path.join(options.out, f"{os.path.basename(workload)}-{nodes}-{run}-{number}.json")


class Local:
    """Cluster of processes on this machine."""

    def __init__(self, options):
        os.environ["TIDEMILL"] = options.binary
        from local_cluster import Cluster
        self.cluster = Cluster(nodes=options.nodes, cores=1, mount=True, directory=options.out)
        self.ask = self.cluster.json

    def fill(self, data):
        shutil.copytree(data, os.path.join(self.cluster.mount_point, "work"))

    def tidemill(self, *args):
        done = self.cluster.run(*args)
        if done.returncode != 0:
            raise RuntimeError(f"tidemill {' '.join(args)}: {done.stderr}")

    def close(self):
        self.cluster.__exit__()


def measure(options, workload, nodes, run, number):
    """Runs the job on a new cluster, and stores the trace."""
    path = trace(options, workload, nodes, run, number)
    if os.path.exists(path):
        return
    options.nodes, options.workload = nodes, workload
    cluster = Local(options) if options.local else testbed.Cluster(options, os.path.join(options.out, "cluster"))
    try:
        cluster.fill(os.path.join(workload, "data"))
        policy = "min-wait" if run.startswith(CALIBRATION) else run
        job = cluster.ask("submit", "--no-cache", os.path.join(workload, "job.toml"), "--policy", policy)["job"]
        cluster.tidemill("--quiet", "job", "watch", str(job))
        cluster.tidemill("job", "export-trace", str(job), "--output", path)
        testbed.say(f"measured {os.path.basename(path)}")
    finally:
        cluster.close()


def compare(options, *args):
    if options.local:
        machine = ["--processors", str(os.cpu_count())]
    else:
        machine = ["--server-core-speed", str(options.server_cores / options.node_cores)]
    command = [options.binary, "--json", "plan", "compare", *machine, *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def read(path):
    with open(path) as file:
        return json.load(file)


def slowdown(path, before):
    """Returns the processor time of the kernels of a run, relative to its calibration."""
    run, calibrated = (sum(task["cpu_ns"] for task in read(name)["tasks"]) for name in (path, before))
    return run / calibrated


def at_speed(options, path, before):
    """Returns the calibration with times as of the processor's speed in the run."""
    factor, scaled = slowdown(path, before), read(before)
    for task in scaled["tasks"]:
        task["compute_ns"] = int(task["compute_ns"] * factor)
    name = os.path.join(options.out, "scaled.json")
    with open(name, "w") as file:
        json.dump(scaled, file)
    return name


def calibration(nodes, policy):
    return f"{CALIBRATION}{nodes}-{policy}"


def predict(options, workload, nodes, run, calibrated):
    rounds = [[trace(options, workload, nodes, run, number),
               trace(options, workload, calibrated, calibration(nodes, run), number)]
              for number in range(options.runs)]
    rounds = [paths for paths in rounds if all(map(os.path.exists, paths))]
    if not rounds:
        return []
    seeds = range(21) if run == "random" else [0]
    reported = [compare(options, path, "--times-of", before, "--seed", str(seed)) for path, before in rounds for seed in seeds]
    scaled = [compare(options, path, "--times-of", at_speed(options, path, before), "--seed", str(seed))
              for path, before in rounds for seed in seeds]
    replayed = [compare(options, path, "--seed", str(seed)) for path, _ in rounds for seed in seeds]
    median = lambda all, field, side: statistics.median(one[field][side] for one in all)
    error = lambda one: one["makespan_ns"]["predicted"] / one["makespan_ns"]["measured"] - 1
    same = [one["transferred_bytes"]["measured"] == one["transferred_bytes"]["predicted"] for one in replayed]
    row = {"workload": os.path.basename(workload), "nodes": nodes, "policy": run, "runs": len(rounds),
           "measured_s": median(reported, "makespan_ns", "measured") / 1e9,
           "predicted_s": median(reported, "makespan_ns", "predicted") / 1e9,
           "error_percent": 100 * statistics.median(map(error, reported)),
           "cpu_percent": 100 * (statistics.median(slowdown(*paths) for paths in rounds) - 1),
           "at_speed_percent": 100 * statistics.median(map(error, scaled)),
           "replay_percent": 100 * statistics.median(map(error, replayed)),
           "transferred_bytes": median(reported, "transferred_bytes", "measured"),
           "predicted_transferred_bytes": median(reported, "transferred_bytes", "predicted"),
           "replays_with_same_bytes": sum(same), "replays": len(same), "tasks": len(reported[0]["tasks"]),
           "same_node": statistics.median(one["same_node"] for one in reported)}
    return [row]


def show(rows):
    print(f"{'workload':10} {'nodes':>8} {'policy':20} {'measured':>9} {'predicted':>9} {'error':>7} {'cpu':>7} "
          f"{'at speed':>8} {'replay':>7} {'fetched MB':>10} {'predicted':>9} {'replays alike':>13} {'placed alike':>12}")
    for row in rows:
        print(f"{row['workload']:10} {row['nodes']:8} {row['policy']:20} {row['measured_s']:8.2f}s "
              f"{row['predicted_s']:8.2f}s {row['error_percent']:+6.1f}% {row['cpu_percent']:+6.1f}% "
              f"{row['at_speed_percent']:+7.1f}% {row['replay_percent']:+6.1f}% {row['transferred_bytes'] / 1e6:10.1f} "
              f"{row['predicted_transferred_bytes'] / 1e6:9.1f} {row['replays_with_same_bytes']:>9}/{row['replays']:<3} "
              f"{row['same_node']:8.0f}/{row['tasks']}")
    within = lambda field: sum(abs(row[field]) <= GOAL_PERCENT for row in rows)
    print(f"makespans within {GOAL_PERCENT} %: {within('error_percent')} of {len(rows)} predicted, "
          f"{within('at_speed_percent')} at the run's speed of the processor, {within('replay_percent')} replayed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", type=os.path.abspath)
    parser.add_argument("--nodes", default="1,4")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--node-cores", type=float, default=0.35)
    parser.add_argument("--client-cores", type=float, default=1.0)
    parser.add_argument("--server-cores", type=float, default=0.5, help="cores of the server, including the server cores of the cluster")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--predict-only", action="store_true")
    parser.add_argument("--binary", type=os.path.abspath, default=os.path.join(HERE, "../target/release/tidemill"))
    parser.add_argument("--out", type=os.path.abspath, default=os.path.join(HERE, "out/truth"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    sizes = sorted((int(size) for size in options.nodes.split(",")), reverse=True)
    policies = [policy for policy in options.policies.split(",") if not (options.local and policy == "hybrid")]
    runs = [(size, policy) for size in sizes for policy in policies]
    calibrated = os.cpu_count() if options.local else sizes[0]
    rows = []
    for workload in options.workloads:
        for number in range(0 if options.predict_only else options.runs):
            for size, run in runs:
                measure(options, workload, calibrated, calibration(size, run), number)
                measure(options, workload, size, run, number)
        for size, run in runs if not options.measure_only else []:
            rows += predict(options, workload, size, run, calibrated)
    if rows:
        with open(os.path.join(options.out, "truth.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        show(rows)


if __name__ == "__main__":
    main()
