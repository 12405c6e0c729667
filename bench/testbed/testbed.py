#!/usr/bin/env python3
"""Runs one workload offline and inside the cluster on the paper's testbed (AnalyzeThis, Fig. 4), and prints Figs. 5 and 7.

  testbed.py WORKLOAD_DIR [--nodes 4] [--client-cores 1] [--node-cores 0.25] [--rate-mbit 1000] [--runs 1]

WORKLOAD_DIR contains `data/` (the input files), `job.toml` (a job file with the workdir /work) and `commands.tsv` (the same tasks
as `kernel<TAB>command`, in a possible order of execution). See bench/README.md.

Offline: the client runs the commands in sequence in the mounted directory; all bytes of its reads and writes cross its link. In the
cluster: the client submits the job script. All runs start with the inputs in the cluster and cold client caches. Needs root. Results:
OUT/results.jsonl, OUT/fig5.svg, OUT/fig7a.svg, OUT/fig7b.svg and tables on standard output.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from hosts import Network, undisturbed, wait
import figures

HERE = os.path.dirname(os.path.abspath(__file__))
POLICIES = ["round-robin", "input-locality", "min-wait", "hybrid"]
PORT = 7070


def say(text):
    print(text, file=sys.stderr, flush=True)


class Cluster:
    """Server, nodes and a mounting client, each on its own host."""

    def __init__(self, options, directory, server_flags=(), client_mbit=None, tls="on", kinds=None, objects=None):
        """`kinds`: cores and flags of each node, if nodes differ. `objects`: a directory that is the bucket of an object store on its
        own host; the rate of its link is the sum of those of all nodes, and flags name its address as `{store}`."""
        self.options, self.directory, self.server_flags, self.tls = options, directory, server_flags, tls
        self.kinds = kinds or [(options.node_cores, ())] * options.nodes
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.mount_point = os.path.join(directory, "mnt")
        self.mount_process = None
        self.token = os.path.join(directory, "server", "token")
        self.network = Network(f"tidemill{os.getpid()}", options.rate_mbit)
        try:
            self.client = self.network.add("client", options.client_cores, client_mbit)
            self.server = self.network.add("server", options.server_cores)
            self.nodes = [self.network.add(f"node{i}", cores) for i, (cores, _) in enumerate(self.kinds)]
            if objects:
                self._store(objects)
            scheme = "https" if tls == "on" else "http"
            url = f"{scheme}://{self.server.address}:{PORT}"
            self.program = [options.binary, "--tls", tls, "--server", url, "--token-file", self.token]
            self._start()
        except BaseException:
            self.close()
            raise

    def _store(self, objects):
        host = self.network.add("store", self.options.server_cores, self.options.rate_mbit * len(self.kinds))
        self.store = f"http://{host.address}:{PORT}"
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "s3.py")
        host.start(sys.executable, program, objects, f"{host.address}:{PORT}", log=self._log("store"))
        self.kinds = [(cores, tuple(flag.replace("{store}", self.store) for flag in flags)) for cores, flags in self.kinds]

    def _start(self):
        server = [self.options.binary, "--tls", self.tls, "server", "run", "--data-dir", os.path.join(self.directory, "server"), "--listen",
                  f"{self.server.address}:{PORT}", "--server-cores", "1", "--server-cores-listen", f"{self.server.address}:0",
                  *self.server_flags]
        self.server.start(*server, log=self._log("server"))
        wait("the server", lambda: os.path.exists(self.token))
        for number, host in enumerate(self.nodes):
            host.start(*self.program, "node", "run", "--id", str(number), "--data-dir",
                       os.path.join(self.directory, f"node{number}"), "--listen", f"{host.address}:{PORT}", "--cores", "1",
                       "--link", str(self.options.rate_mbit * 125_000), *self.kinds[number][1], log=self._log(f"node{number}"))
        up = lambda: sum(e["up"] for e in self.ask("status")["nodes"]) >= len(self.nodes) + 1
        wait("the nodes", up)

    def _log(self, name):
        return os.path.join(self.directory, f"{name}.log")

    def tidemill(self, *args):
        return self.client.call(*self.program, *args)

    def ask(self, *args):
        return json.loads(self.tidemill("--json", *args))

    def mount(self):
        os.makedirs(self.mount_point, exist_ok=True)
        self.mount_process = self.client.start(*self.program, "mount", "--path", self.mount_point, log=self._log("mount"))
        wait("the mount", lambda: os.path.exists(os.path.join(self.mount_point, ".tidemill")))

    def unmount(self):
        self.mount_process.terminate()
        try:
            self.mount_process.wait(timeout=60)
        finally:
            subprocess.run(["umount", "-l", self.mount_point], capture_output=True)

    def fill(self, data):
        """Copies the input files into the cluster through the mount, and mounts again, so that nothing is cached."""
        self.mount()
        self.client.call("mkdir", "-p", os.path.join(self.mount_point, "work"))
        self.client.call("cp", "-r", os.path.join(data, "."), os.path.join(self.mount_point, "work"))
        self.unmount()

    def sent(self):
        return {host.name: host.counters()["sent"] for host in self.network.hosts}

    @undisturbed()
    def close(self):
        try:
            if self.mount_process:
                self.unmount()
        finally:
            self.network.close()

    @undisturbed()
    def remove(self):
        """Ends all processes, and removes the directory."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def bytes_since(cluster, before):
    return {name: now - before[name] for name, now in cluster.sent().items()}


def offline(cluster, commands):
    """Runs the commands on the client through the mount. Compute is the processor time, and I/O is the rest of the wall time."""
    cluster.mount()
    before, start = cluster.sent(), time.monotonic()
    runner = [sys.executable, os.path.join(HERE, "offline.py"), commands, os.path.join(cluster.mount_point, "work")]
    tasks = json.loads(cluster.client.call(*runner))
    cluster.unmount()  # written bytes have left the client only when the file is sealed
    wall = time.monotonic() - start
    compute = sum(task["cpu_s"] for task in tasks)
    moved = bytes_since(cluster, before)
    return {"mode": "offline", "wall_s": wall, "compute_s": compute, "io_s": max(0.0, wall - compute), "shuffle_s": 0.0,
            "link_bytes": sum(moved.values()), "links": moved, "tasks": len(tasks)}


def in_cluster(cluster, script, policy):
    before, start = cluster.sent(), time.monotonic()
    job = cluster.ask("submit", "--no-cache", script, "--policy", policy)["job"]
    while True:
        state = cluster.ask("job", "show", str(job))
        if state["state"] not in ("running", "waiting"):
            break
        time.sleep(0.2)
    moved = bytes_since(cluster, before)
    if state["state"] != "done":
        raise RuntimeError(f"job {job} under {policy}: {state['state']}\n{cluster.tidemill('job', 'logs', str(job))}")
    tasks = state["tasks"]
    busy = {}
    for task in tasks:
        busy[task["node"]] = busy.get(task["node"], 0.0) + (task["end"] - task["start"]) / 1e9
    hosts = {e["node"] for e in cluster.ask("status")["nodes"] if e["role"] == "server-cores"}
    stores = [busy.get(i, 0.0) for i in range(len(cluster.nodes))]
    return {"mode": policy, "wall_s": (state["ended"] - state["submitted"]) / 1e9, "seen_s": time.monotonic() - start,
            "compute_s": sum((t["end"] - t["kernel_start"]) / 1e9 for t in tasks),
            "shuffle_s": sum((t["kernel_start"] - t["start"]) / 1e9 for t in tasks), "io_s": 0.0,
            "slowest_s": max(stores), "fastest_s": min(stores), "host_s": sum(busy.get(h, 0.0) for h in hosts),
            "transferred_bytes": state["transferred_bytes"], "link_bytes": sum(moved.values()), "links": moved, "tasks": len(tasks)}


def once(options, mode, run):
    cluster = Cluster(options, os.path.join(options.out, "cluster"))
    try:
        say(f"run {run + 1}: {mode}: copying the inputs in")
        cluster.fill(os.path.join(options.workload, "data"))
        say(f"run {run + 1}: {mode}: running")
        if mode == "offline":
            result = offline(cluster, os.path.join(options.workload, "commands.tsv"))
        else:
            result = in_cluster(cluster, os.path.join(options.workload, "job.toml"), mode)
        say(f"run {run + 1}: {mode}: {result['wall_s']:.1f} s, {result['link_bytes'] / 1e6:.1f} MB over links")
        return {"workload": os.path.basename(options.workload), "run": run, **result}
    finally:
        cluster.close()


def summary(results):
    """Returns the median run of each mode."""
    modes = {}
    for result in results:
        modes.setdefault(result["mode"], []).append(result)
    return [sorted(runs, key=lambda r: r["wall_s"])[len(runs) // 2] for runs in modes.values()]


def report(options, results):
    rows = summary(results)
    base = next((row for row in rows if row["mode"] == "offline"), None)
    print(f"\n{base['workload'] if base else ''}: {options.nodes} nodes of {options.node_cores} cores, "
          f"client {options.client_cores}, links {options.rate_mbit} Mbit/s, median of {options.runs}")
    print(f"{'mode':16} {'time s':>8} {'compute':>8} {'I/O':>8} {'shuffle':>8} {'slowest':>8} {'fastest':>8} "
          f"{'links MB':>9} {'fetched MB':>10} {'time/off.':>9} {'bytes/off.':>10}")
    for row in rows:
        ratio = (row["wall_s"] / base["wall_s"], row["link_bytes"] / base["link_bytes"]) if base else (0, 0)
        print(f"{row['mode']:16} {row['wall_s']:8.2f} {row['compute_s']:8.2f} {row['io_s']:8.2f} {row['shuffle_s']:8.2f} "
              f"{row.get('slowest_s', 0):8.2f} {row.get('fastest_s', 0):8.2f} {row['link_bytes'] / 1e6:9.1f} "
              f"{row.get('transferred_bytes', 0) / 1e6:10.1f} {ratio[0]:9.2f} {ratio[1]:10.3f}")
    figures.write(options.out, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=os.path.abspath)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--client-cores", type=float, default=1.0)
    parser.add_argument("--node-cores", type=float, default=0.25)
    parser.add_argument("--server-cores", type=float, default=0.5, help="cores of the server, including the server cores of the cluster")
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--modes", default=",".join(["offline", *POLICIES]))
    parser.add_argument("--binary", type=os.path.abspath, default=os.path.join(HERE, "../../target/release/tidemill"))
    parser.add_argument("--out", type=os.path.abspath, default=os.path.join(HERE, "../out/testbed"))
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    results = []
    with open(os.path.join(options.out, "results.jsonl"), "a") as file:
        for run in range(options.runs):
            for mode in options.modes.split(","):
                result = once(options, mode, run)
                results.append(result)
                file.write(json.dumps(result) + "\n")
                file.flush()
    report(options, results)


if __name__ == "__main__":
    main()
