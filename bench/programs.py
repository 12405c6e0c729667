#!/usr/bin/env python3
"""Programs with many small files, in place and over HTTP, against the ext4 below.

  cargo build --release && bench/programs.py [--rounds 5] [--files 5000] [--only tar,clone,grep,find,list,rename,rm]
                                             [--before BINARY]

Every round does the same actions in turn on ext4, on a mount in place and on a mount over HTTP, each with its own cluster (with
--before, on another build, too). Prints one JSON line for each action, with the medians and the median ratio to ext4 (above 1 is
faster). `limit` is the ratio of a do-nothing loopback on the same FUSE library in the same rounds. `cold` actions run on a new mount,
with the files' bytes in the page cache. Needs root, git and tar.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from local_cluster import BINARY, Cluster, Loopback, wait

DIRECTORIES = 100
# Goals for the ratios.
GOALS = {
    "tar x": {"in place": 0.5, "http": 0.25},
    "git clone": {"in place": 0.67, "http": 0.33},
    "grep -r, warm": {"in place": 0.5, "http": 0.125},
    "find, cold": {"in place": 0.67, "http": 0.67},
    "ls -lR, cold": {"in place": 0.67, "http": 0.67},
}
# Actions that the loopback can't do, or does differently: it is never mounted again.
WITHOUT_LIMIT = ("git clone", "find, cold", "ls -lR, cold")


def make_source(directory, files):
    """Makes directories with files of 1 to 16 KiB, like a source tree."""
    chance = random.Random(11)
    words = [f"word{number:04}" for number in range(5000)]
    for number in range(files):
        path = f"{directory}/d{number % DIRECTORIES:02}"
        os.makedirs(path, exist_ok=True)
        size = int(1024 * 2 ** chance.uniform(0, 4))
        text = " ".join(chance.choices(words, k=size // 9))
        with open(f"{path}/file{number:05}.txt", "w") as file:
            file.write(text)


def run(*command, **rest):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **rest)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: {done.stderr.decode()}")


class Side:
    """Work directory; for mounts, with a way to mount again."""

    def __init__(self, name, directory, cluster=None, process=None):
        self.name, self.directory, self.cluster, self.process = name, directory, cluster, process

    def settled(self):
        """Waits for work after the end of programs: seals, removals, and dirty pages, which would slow the next commit of
        another side."""
        time.sleep(1)
        os.sync()

    def remount(self):
        if not self.cluster:
            return
        mount, args = self.process
        mount.terminate()
        mount.wait(timeout=60)
        self.process = (start_mount(self.cluster, *args), args)


def start_mount(cluster, binary, point, in_place):
    log = open(f"{cluster.directory}/{os.path.basename(point)}.log", "ab")
    command = [binary, "--server", cluster.endpoint, "mount", "--path", point, "--in-place", in_place]
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    cluster.processes.append(process)
    wait("a mount", lambda: os.path.exists(f"{point}/.tidemill"))
    return process


def mounted(clusters, name, binary, in_place):
    """Side with its own cluster, so that the cluster has no second mount."""
    cluster = Cluster(nodes=1, cores=1, binary=binary)
    clusters.append(cluster)
    os.mkdir(cluster.mount_point)
    args = (binary, cluster.mount_point, in_place)
    process = start_mount(cluster, *args)
    directory = f"{cluster.mount_point}/work"
    os.mkdir(directory)
    return Side(name, directory, cluster, (process, args))


class Bench:
    def __init__(self, options, sides, source, archive, repository):
        self.options, self.sides, self.times = options, sides, {}
        self.source, self.archive, self.repository = source, archive, repository

    def time(self, what, action, before=lambda side: side.settled()):
        for side in self.sides:
            if side.name == "limit" and what in WITHOUT_LIMIT:
                continue
            before(side)
            start = time.perf_counter()
            action(side.directory)
            self.times.setdefault(what, {}).setdefault(side.name, []).append(time.perf_counter() - start)

    def tar(self):
        self.time("tar x", lambda directory: run("tar", "xf", self.archive, "-C", directory))

    def clone(self):
        self.time("git clone", lambda directory: run("git", "clone", "-q", "--no-hardlinks", self.repository, f"{directory}/clone"))

    def grep(self):
        for _ in range(2):
            for side in self.sides:
                run("grep", "-rc", "nothing-of-the-kind", side.directory)
        self.time("grep -r, warm", lambda directory: run("grep", "-r", "nothing-of-the-kind", directory))

    def find(self):
        self.time("find, cold", lambda directory: run("find", directory, "-size", "+1000k"), lambda side: (side.settled(), side.remount()))

    def list(self):
        self.time("ls -lR, cold", lambda directory: run("ls", "-lR", directory), lambda side: (side.settled(), side.remount()))

    def rename(self):
        def save(directory):
            for number in range(500):
                with open(f"{directory}/saved.new", "w") as file:
                    file.write("x" * 2000)
                os.rename(f"{directory}/saved.new", f"{directory}/saved")
        self.time("save by rename ×500", save)

    def rm(self):
        self.time("rm -rf", lambda directory: run("rm", "-rf", *(f"{directory}/{name}" for name in os.listdir(directory))))

    def print(self):
        for what, times in self.times.items():
            ext4, limit = times.pop("ext4"), times.pop("limit", None)
            for side, own in times.items():
                ratio = statistics.median(e / o for o, e in zip(own, ext4))
                goal = GOALS.get(what, {}).get(side.removeprefix("before "), 0)
                line = {"what": f"{what}, {side}", "peer": "ext4", "ratio": round(ratio, 3), "goal": goal, "met": ratio >= goal,
                        "ours_s": round(statistics.median(own), 4), "peer_s": round(statistics.median(ext4), 4)}
                if limit:
                    line["limit"] = round(statistics.median(e / l for l, e in zip(limit, ext4)), 3)
                print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--only", default="tar,clone,grep,find,list,rename,rm")
    parser.add_argument("--before", help="binary of another build, measured in the same rounds")
    options = parser.parse_args()
    work = tempfile.mkdtemp(prefix="tidemill-bench-programs-")
    source, repository, archive, ext4 = (f"{work}/{name}" for name in ("source", "repository", "source.tar", "ext4"))
    os.mkdir(source), os.mkdir(repository), os.mkdir(ext4)
    make_source(source, options.files)
    make_source(repository, options.files * 2 // 5)
    run("tar", "cf", archive, "-C", source, ".")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=b", "-c", "user.email=b@b", "commit", "-qm", "all")):
        run("git", "-C", repository, *command)
    clusters = []
    try:
        clusters.append(Loopback())
        os.mkdir(f"{clusters[0].point}/work")
        sides = [Side("ext4", ext4), Side("limit", f"{clusters[0].point}/work")]
        for label, binary in (("", BINARY), ("before ", options.before)):
            if binary:
                sides.append(mounted(clusters, f"{label}in place", binary, "true"))
                sides.append(mounted(clusters, f"{label}http", binary, "false"))
        bench = Bench(options, sides, source, archive, repository)
        for _ in range(options.rounds):
            for part in options.only.split(","):
                getattr(bench, part)()
            for side in sides:
                for name in os.listdir(side.directory):
                    shutil.rmtree(f"{side.directory}/{name}", ignore_errors=True)
        bench.print()
    finally:
        for cluster in clusters:
            cluster.__exit__()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
