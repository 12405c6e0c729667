#!/usr/bin/env python3
"""Static against elastic allocation (LABIOS, Fig. 13): writes files while some nodes are suspended, to the active nodes or to all.

  cargo build --release && bench/elastic.py [--nodes 8] [--files 256] [--size 4] [--rate 20M] [--resume 2]

Each node takes files at --rate. A control group can't limit the nodes on one disk separately, so the writers are paced, with
one writer for each node that takes part. The script measures 25, 50, 75 and 100 % active nodes. `static` writes to the active
nodes. `elastic` first resumes the others, all at once, by `tidemill node resume`, and writes to all nodes that are active by
then. The resume is real: the node's process starts again, and a resume command adds --resume seconds, as a host would. Energy is the
value of `tidemill status` between start and end, computed from --busy, --idle and --suspended watts of all nodes. The cluster counts
resuming hosts as suspended, so the script adds the energy of a busy host during the resume. Prints JSON lines: `elastic_pays` compares
both ways, `predicted` is the answer of `tidemill plan power` for as many tasks with the time of a file and all nodes resumed, and
`error` is its relative error (0.1: 10 % too much).
"""
import argparse
import json
import os
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from local_cluster import Cluster, wait  # noqa: E402


class Elastic(Cluster):
    """Cluster whose nodes have configured values of power."""

    def __init__(self, options):
        self.options = options
        super().__init__(nodes=options.nodes, cores=1)

    def _start(self, name, *args):
        if args[0] == "node":
            watts = {"busy": self.options.busy, "idle": self.options.idle, "suspended": self.options.suspended}
            args += tuple(f"--{state}-power={power} W" for state, power in watts.items())
        super()._start(name, *args)

    def active(self):
        return [e["node"] for e in self.json("status")["nodes"] if e["up"]]

    def watts(self):
        return sum(self.options.busy if e["up"] else self.options.suspended for e in self.json("status")["nodes"])

    def joules(self):
        return sum((e["energy"] or {"joules": 0})["joules"] for e in self.json("status")["nodes"])


def writer(cluster, node, files, taken, options):
    """Writes files to one node at its rate until none is left."""
    with tempfile.NamedTemporaryFile() as local:
        local.write(os.urandom(options.size << 20))
        local.flush()
        while True:
            with taken:
                if not files:
                    return
                number = files.pop()
            begun = time.monotonic()
            cluster.tidemill("put", "--node", str(node), local.name, f"/f{number}")
            left = options.size * (1 << 20) / options.rate - (time.monotonic() - begun)
            time.sleep(max(0, left))


def measure(cluster, active, elastic, options):
    everyone = list(range(options.nodes))
    suspended = everyone[active:]
    for node in everyone[:active]:
        cluster.tidemill("node", "resume", str(node))
    for node in suspended:
        wait(f"node {node} to suspend", lambda: cluster.run("node", "suspend", str(node)).returncode == 0)
    files, taken = [f"{active}-{int(elastic)}-{number}" for number in range(options.files)], threading.Lock()
    drawn, begun = cluster.joules(), time.monotonic()
    resumes = []

    def work(node):
        if node in suspended:
            at = time.monotonic()
            time.sleep(options.wake)
            cluster.tidemill("node", "resume", str(node))
            resumes.append(time.monotonic() - at)
        writer(cluster, node, files, taken, options)

    who = everyone if elastic else everyone[:active]
    threads = [threading.Thread(target=work, args=(node,)) for node in who]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun
    time.sleep(1)  # the cluster adds energy twice a second
    joules = cluster.joules() - drawn
    joules -= (time.monotonic() - begun - seconds) * cluster.watts()
    joules += len(resumes) * options.resume * (options.busy - options.suspended)
    return {"seconds": seconds, "joules": joules, "resume_s": sum(resumes) / len(resumes) if resumes else 0}


def predict(cluster, active, resume, options):
    """Returns the planner's prediction for as many tasks as files, each with the time of a file."""
    with tempfile.TemporaryDirectory() as directory:
        def path(name, text):
            with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
                file.write(text)
            return os.path.join(directory, name)

        tasks = (f'{{ name = "t{n}"; kernel = "put"; output = [ "o{n}" ]; }}' for n in range(options.files))
        job = path("job.conf", 'name = "files"; workdir = "/"; tasks = ( ' + ", ".join(tasks) + " );")
        span = options.size * (1 << 20) / options.rate
        costs = path("costs.toml", f'[kernels]\nput = {{ time = {span}, output = 0 }}\n')
        platform = path("cluster.ini", f"""[AFE]
cores_per_afe = 1
read_bandwidth = unlimited
write_bandwidth = unlimited
read_latency = 0
write_latency = 0
power_busy = {options.busy}
power_idle = {options.idle}
power_suspended = {options.suspended}
resume = {resume}
[SERVER]
number_afes = {options.nodes}
""")
        point = cluster.json("plan", "power", job, "--costs", costs, "--platform", platform, "--active", str(active))["points"][0]
        shown = lambda way: {"seconds": point[way]["makespan_ns"] / 1e9, "joules": point[way]["energy_joules"]}
        return {"static": shown("static"), "elastic": shown("all"), "resumed_if_it_pays": point["elastic"]["resumes"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--files", type=int, default=256)
    parser.add_argument("--size", type=int, default=4, help="size of a file in MiB")
    parser.add_argument("--rate", type=float, default=20e6, help="rate of a node in bytes per second")
    parser.add_argument("--resume", type=float, default=2, help="seconds of the resume of a host, in addition to the start of the process")
    parser.add_argument("--busy", type=float, default=165)
    parser.add_argument("--idle", type=float, default=165)
    parser.add_argument("--suspended", type=float, default=16)
    options = parser.parse_args()
    with Elastic(options) as cluster:
        for percent in (25, 50, 75, 100):
            active = max(1, options.nodes * percent // 100)
            static, elastic = (measure(cluster, active, way, options) for way in (False, True))
            predicted = predict(cluster, active, elastic["resume_s"] or options.resume, options)
            error = {
                way: {of: round(predicted[way][of] / measured[of] - 1, 3) for of in ("seconds", "joules")}
                for way, measured in (("static", static), ("elastic", elastic))
            }
            print(json.dumps({
                "bench": "elastic", "active_percent": percent, "nodes": options.nodes,
                "static": static, "elastic": elastic,
                "elastic_pays": {"time": elastic["seconds"] < static["seconds"], "energy": elastic["joules"] < static["joules"]},
                "predicted": predicted, "error": error,
            }), flush=True)


if __name__ == "__main__":
    main()
