#!/usr/bin/env python3
"""The log of the server's database: what it costs while files are created, and how long a recovery takes.

  cargo build --release && bench/log.py --peer BINARY [--files 3000] [--rounds 5] [--many 1000000] [--only cost,recover,replicated]

`cost` creates, writes (4 KiB) and closes files through a mount, in turns with this binary and with BINARY, that of another release. It reports the
time, and the processor time of the server and of the nodes until 2 s later. `recover` adds that many files to a server's database, waits
until a node has the log, recovers the database from the node's directory, and copies the file of the database for comparison. `replicated`
makes directories with one and with 64 threads, and small files, in turns without a log and with a log in three NATS servers on this machine,
each of which syncs each message (the binary needs the feature `nats`). Needs root.
Prints JSON lines.
"""
import argparse
import itertools
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import threading
import time

from growth import processor_s
from local_cluster import BINARY, Cluster, wait


def cost(binary, files):
    with Cluster(nodes=3, mount=True, binary=binary) as cluster:
        server, nodes = cluster.processes[0].pid, [process.pid for process in cluster.processes[1:4]]

        def used():
            return processor_s(server), sum(map(processor_s, nodes))

        def write(name, count):
            directory = os.path.join(cluster.mount_point, name)
            os.mkdir(directory)
            for number in range(count):
                file = os.open(f"{directory}/{number}", os.O_CREAT | os.O_WRONLY)
                os.write(file, b"x" * 4096)
                os.close(file)

        write("warm", 100)
        time.sleep(2)
        before, began = used(), time.time()
        write("files", files)
        seconds = time.time() - began
        time.sleep(2)
        after = used()
        return {"seconds": seconds, "server_cpu_s": after[0] - before[0], "nodes_cpu_s": after[1] - before[1]}


def costs(peer, files, rounds):
    measured = {"this": [], "peer": []}
    for _ in range(rounds):
        for name, binary in (("this", BINARY), ("peer", peer)):
            line = cost(binary, files)
            print(json.dumps({"what": "cost", "with": name, "files": files, **{k: round(v, 3) for k, v in line.items()}}), flush=True)
            measured[name].append(line)
    for key in ("seconds", "server_cpu_s", "nodes_cpu_s"):
        middle = {name: statistics.median(line[key] for line in lines) for name, lines in measured.items()}
        print(json.dumps({"what": "ratio", "of": key, "this_to_peer": round(middle["this"] / middle["peer"], 3)}), flush=True)


def fill(path, count):
    """Adds files to the database of a stopped server."""
    db = sqlite3.connect(path)
    first = 1 << 20
    numbers = f"WITH RECURSIVE n(i) AS (VALUES ({first}) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {first + count})"
    now = time.time_ns()
    with db:
        db.execute(f"INSERT INTO inode {numbers} SELECT i, (SELECT kind FROM inode WHERE ino != 1 AND version > 0 LIMIT 1), 420, "
                   f"0, 0, 1, 4096, {now} + i, {now} + i, {now} + i, 0, 1, i, 0, 0, 1, NULL FROM n")
        db.execute(f"INSERT INTO dirent {numbers} SELECT 1, CAST('file-' || i AS BLOB), i FROM n")
        db.execute(f"INSERT INTO version(object, ino, version, size, node, uid, sealed_at, task, path) {numbers} "
                   f"SELECT i, i, 1, 4096, 0, 0, {now} + i, 0, CAST('/file-' || i AS BLOB) FROM n")
        db.execute(f"UPDATE counter SET next = {2 * (first + count)} WHERE name IN ('inode', 'object')")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def complete(directory):
    return [name for name in os.listdir(directory) if not name.endswith(".part")] if os.path.isdir(directory) else []


def recover(many):
    with Cluster(nodes=1) as cluster:
        server, node = f"{cluster.directory}/server", f"{cluster.directory}/node0"
        subprocess.run([cluster.binary, "--server", cluster.endpoint, "put", "/etc/hostname", "/one"], check=True, capture_output=True)
        cluster.processes[0].terminate()
        cluster.processes[0].wait()
        fill(f"{server}/server.db", many)
        size = os.path.getsize(f"{server}/server.db")
        began = time.time()
        cluster._start("server", "server", "run", "--data-dir", server, "--listen", "127.0.0.1:0")
        process = cluster.processes[-1]
        wait("the snapshot", lambda: any(name.startswith("00000002") and name.endswith("snapshot") for name in complete(f"{node}/log")))
        snapshot_s, cpu_s = time.time() - began, processor_s(process.pid)
        process.kill()
        process.wait()
        log = sum(os.path.getsize(f"{node}/log/{name}") for name in complete(f"{node}/log") if name.startswith("00000002"))
        shutil.copy(f"{server}/server.db", f"{cluster.directory}/warm.db")
        began = time.time()
        shutil.copy(f"{server}/server.db", f"{cluster.directory}/copy.db")
        os.sync()
        copy_s = time.time() - began
        began = time.time()
        command = [cluster.binary, "server", "recover", "--data-dir", f"{cluster.directory}/new", node]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            raise SystemExit("the recovery failed")
        os.sync()
        seconds = time.time() - began
        line = {"what": "recover", "files": many, "database_mb": size / 1e6, "log_mb": log / 1e6, "snapshot_s": snapshot_s,
                "server_cpu_s": cpu_s, "copy_s": copy_s, "recover_s": seconds, "recover_mb": usage.ru_maxrss / 1000,
                "recover_to_copy": seconds / copy_s}
        print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()}), flush=True)


def rates(replicated, files):
    """Returns the rates of changes through a mount, per second."""
    with Cluster(nodes=1, mount=True, replicated=replicated) as cluster:
        def rate(threads, change):
            made = itertools.count()

            def work():
                while (number := next(made)) < files:
                    change(number)

            workers = [threading.Thread(target=work) for _ in range(threads)]
            began = time.time()
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return files / (time.time() - began)

        def small(number):
            file = os.open(f"{cluster.mount_point}/files/{number}", os.O_CREAT | os.O_WRONLY)
            os.write(file, b"x" * 4096)
            os.close(file)

        for name in ("warm", "one", "many", "files"):
            os.mkdir(f"{cluster.mount_point}/{name}")
        rate(4, lambda number: os.mkdir(f"{cluster.mount_point}/warm/{number}"))
        return {
            "mkdir_1": rate(1, lambda number: os.mkdir(f"{cluster.mount_point}/one/{number}")),
            "mkdir_64": rate(64, lambda number: os.mkdir(f"{cluster.mount_point}/many/{number}")),
            "files": rate(1, small),
        }


def replicated(files, rounds):
    measured = {True: [], False: []}
    for _ in range(rounds):
        for with_log in (True, False):
            line = rates(with_log, files)
            print(json.dumps({"what": "rates", "replicated": with_log, **{k: round(v) for k, v in line.items()}}), flush=True)
            measured[with_log].append(line)
    for key in measured[True][0]:
        middle = {with_log: statistics.median(line[key] for line in lines) for with_log, lines in measured.items()}
        print(json.dumps({"what": "ratio", "of": key, "replicated_to_not": round(middle[True] / middle[False], 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="binary of a release without a log")
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", type=int, default=1_000_000)
    parser.add_argument("--only", default="cost,recover")
    options = parser.parse_args()
    if "recover" in options.only.split(","):
        recover(options.many)
    if "replicated" in options.only.split(","):
        replicated(options.files, options.rounds)
    if "cost" in options.only.split(","):
        costs(options.peer or parser.error("cost needs --peer"), options.files, options.rounds)


if __name__ == "__main__":
    main()
