#!/usr/bin/env python3
"""Labels of an application: rates of publishing and storing; single labels; large labels.

  cargo build --release -p tidemill-cli -p tidemill-label && bench/labels.py [--rounds 3] [--dir DIRECTORY] [--binary target/release/tidemill]

`publish`: labels of 1 KiB, which survive a kill of any process, against a copy of as many bytes within memory. `stored`: the
same until all bytes are in closed files, with 10 000 files and with one file. The peer are system calls through the same mount (open,
pwrite, close; a single file is opened once). `cpu_us` is the processor time of application and agent per label. `wait`: one label and
the wait for it. `large`: labels of 1 MiB as the application sees them, against memcpy; and until they are on the device, against
`dd conv=fsync` into the file system below. `intent`: the effect of each intent on a label that the application does not wait for (the
time until it is stored), and on the agent (its wake-ups and processor time with one label every millisecond). Prints JSON lines with
medians over rounds. The cluster is in DIRECTORY. Choose a file system in which few files were removed recently: after many removals, ext4
creates files many times slower for some minutes.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import time

from local_cluster import BINARY, HERE, Cluster


class Labels:
    def __init__(self, cluster, binary):
        self.cluster, self.directory = cluster, f"/dev/shm/tidemill-bench-{os.getpid()}"
        os.mkdir(self.directory, 0o700)
        target = os.path.dirname(os.path.abspath(binary))
        self.program = os.path.join(cluster.directory, "labels-bench")
        compile = ["cc", "-O2", "-o", self.program, f"{HERE}/labels.c", f"-L{target}", "-ltidemill_label", f"-Wl,-rpath,{target}"]
        subprocess.run(compile, check=True)
        self.env = dict(os.environ, TIDEMILL_LABELS=self.directory, TIDEMILL=os.path.abspath(binary))
        self.number = 0

    def fresh(self):
        """Makes a new directory in the cluster."""
        self.number += 1
        path = os.path.join(self.cluster.mount_point, str(self.number))
        os.mkdir(path)
        return path

    def agent(self):
        """Returns the agent's process and its processor seconds."""
        try:
            with open(os.path.join(self.directory, "agent.lock")) as lock:
                pid = int(lock.read())
            with open(f"/proc/{pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
            return pid, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return None, 0.0

    def wakes(self):
        """Returns the number of voluntary context switches of the agent's threads."""
        pid, count = self.agent()[0], 0
        for thread in os.listdir(f"/proc/{pid}/task") if pid else []:
            with open(f"/proc/{pid}/task/{thread}/status") as status:
                count += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
        return count

    def run(self, mode, count, size, files, directory=None):
        before, times = self.agent(), os.times()
        command = [self.program, mode, directory or self.fresh(), str(count), str(size), str(files)]
        printed = subprocess.run(command, env=self.env, check=True, capture_output=True, text=True).stdout
        after = os.times()
        own = after.children_user + after.children_system - times.children_user - times.children_system
        now = self.agent()
        return [float(number) for number in printed.split()], own + now[1] - (before[1] if now[0] == before[0] else 0)


def show(**line):
    print(json.dumps(line), flush=True)


def median(values):
    return statistics.median(values)


def small(labels, rounds):
    count, size = 200_000, 1024
    ours, copies = [], []
    for _ in range(rounds):
        ours.append(labels.run("publish", count, size, 1)[0][0])
        copies.append(labels.run("memcpy", count, size, 1)[0][0])
    show(bench="publish", labels=count, bytes=size, labels_a_second=round(count / median(ours)), ratio_to_memcpy=round(median(copies) / median(ours), 3))
    for count, files in [(10_000, 10_000), (200_000, 1)]:
        stored, cpu, calls = [], [], []
        for _ in range(rounds):
            printed, took = labels.run("publish", count, size, files)
            stored.append(printed[1])
            cpu.append(took)
            calls.append(labels.run("syscall", count, size, files)[0][0])
        show(bench="stored", labels=count, files=files, labels_a_second=round(count / median(stored)), cpu_us=round(median(cpu) / count * 1e6, 1),
             ratio_to_system_calls=round(median(calls) / median(stored), 2))


def one(labels, rounds):
    for mode, what, files in [("wait", "write new files", 2000), ("wait", "write one file of 2 MB", 1), ("read", "read one file of 2 MB", 1)]:
        all_of = []
        for _ in range(rounds):
            directory = labels.fresh()
            if files == 1:
                with open(f"{directory}/0", "wb") as file:
                    file.write(bytes(1024 * 2000))
            all_of += labels.run(mode, 2000, 1024, files, directory)[0]
        all_of.sort()
        show(bench="one", what=what, bytes=1024, p50_us=round(median(all_of)), p99_us=round(all_of[len(all_of) * 99 // 100]))


def large(labels, rounds):
    count, size = 512, 1 << 20
    seen, copies, stored, disk = [], [], [], []
    for _ in range(rounds + 1):
        # As much data as fits, so that the application never waits for the agent.
        seen.append(labels.run("publish", 128, size, 1)[0][0])
        copies.append(labels.run("memcpy", 128, size, 1)[0][0])
        directory = labels.fresh()
        stored.append(labels.run("publish", count, size, 1, directory)[0][1])
        # Both must write to pages that the machine has used before: in a virtual machine, each new page costs a fault of the host.
        shutil.rmtree(directory)
        time.sleep(2)
        target = os.path.join(labels.cluster.directory, "dd")
        begun = time.perf_counter()
        subprocess.run(["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={count}", "conv=fsync"], check=True, stderr=subprocess.DEVNULL)
        disk.append(time.perf_counter() - begun)
        os.remove(target)
    show(bench="large", what="as the application sees it", mb_a_second=round(128 * size / median(seen[1:]) / 1e6), ratio_to_memcpy=round(median(copies[1:]) / median(seen[1:]), 3))
    show(bench="large", what="on the device", mb_a_second=round(count * size / median(stored[1:]) / 1e6), ratio_to_dd=round(median(disk[1:]) / median(stored[1:]), 2))


def intents(labels):
    for number, name in enumerate(["none", "low latency", "bandwidth", "energy"]):
        stored = sorted(labels.run("seen", 20, 1024, number)[0])
        time.sleep(1.5)
        wakes, begun = labels.wakes(), labels.agent()[1]
        labels.run("paced", 3000, 1024, number)
        show(bench="intent", intent=name, stored_p50_ms=round(stored[10] / 1000, 2), wakes_a_label=round((labels.wakes() - wakes) / 3000, 3),
             agent_cpu_us_a_label=round((labels.agent()[1] - begun) / 3000 * 1e6, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir")
    parser.add_argument("--binary", default=BINARY)
    args = parser.parse_args()
    with Cluster(nodes=1, cores=2, mount=True, directory=args.dir, binary=args.binary) as cluster:
        labels = Labels(cluster, args.binary)
        try:
            one(labels, args.rounds)
            small(labels, args.rounds)
            large(labels, args.rounds)
            intents(labels)
        finally:
            pid = labels.agent()[0]
            if pid:
                os.kill(pid, 9)
            shutil.rmtree(labels.directory)


if __name__ == "__main__":
    main()
