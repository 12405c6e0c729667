#!/usr/bin/env python3
"""How costs grow: of the server with the number of nodes, and of one user's tasks with another user's backlog.

  cargo build --release && bench/growth.py [--nodes 4,50,100] [--tasks 5000] [--only nodes,users]

`nodes` starts a server and that many nodes on this machine, kills the server, and starts it again: the maximum memory and the processor time
of the new server until 5 s after all nodes are up, then its processor time per second without work, per file of 4 KiB that is put, and per
task that runs `true`. `users` submits a job of that many tasks as one user and 2 s later a job of ten tasks as another user; the result is
the time until the ten tasks have ended, and the same time without the other job. Needs root. Prints JSON lines.
"""
import argparse
import itertools
import json
import os
import subprocess
import time

from local_cluster import Cluster, wait

TICKS = os.sysconf("SC_CLK_TCK")
USERS = (1001, 1002)
NUMBERS = itertools.count()


def processor_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def peak_mb(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def up(cluster):
    return sum(node["up"] for node in cluster.json("status")["nodes"])


def tasks(count, directory="/"):
    number = next(NUMBERS)
    output = f'output = [ "o{number}-{{i}}" ]; stdout = "o{number}-{{i}}";'
    each = f'{{ name = "t{{i}}"; foreach = {{ i = "1..{count}"; }}; kernel = "/bin/true"; {output} }}'
    return f'name = "growth"; workdir = "{directory}"; tasks = ( {each} );'


def of_nodes(count, operations):
    with Cluster(nodes=count, cores=1) as cluster:
        cluster.processes[0].kill()
        cluster.processes[0].wait()
        cluster._start("server", "server", "run", "--data-dir", f"{cluster.directory}/server", "--listen", "127.0.0.1:0")
        server = cluster.processes[-1].pid
        wait("the nodes", lambda: cluster.run("status").returncode == 0 and up(cluster) == count)
        time.sleep(5)
        line = {"what": "nodes", "nodes": count, "peak_mb": peak_mb(server), "start_cpu_s": processor_s(server)}

        def cost(work, per, idle=0.0):
            before, began = processor_s(server), time.time()
            work()
            used = processor_s(server) - before - idle / 1e6 * (time.time() - began)
            return round(used / per * 1e6)

        path = os.path.join(cluster.directory, "file")
        with open(path, "wb") as file:
            file.write(bytes(4096))

        def put():
            for number in range(operations):
                cluster.tidemill("put", path, f"/file-{number}")

        idle = line["idle_us_per_s"] = cost(lambda: time.sleep(10), 10)
        cluster.submit(tasks(1))
        line["put_us"] = cost(put, operations, idle)
        line["task_us"] = cost(lambda: cluster.submit(tasks(1000)), 1000, idle)
        line["job_us"] = cost(lambda: [cluster.submit(tasks(1)) for _ in range(operations)], operations, idle)
        line["peak_mb_after"] = peak_mb(server)
        print(json.dumps(line), flush=True)


def of_users(backlog):
    with Cluster(nodes=2, cores=1, mount=True) as cluster:
        os.chmod(cluster.directory, 0o755)
        os.mkdir(os.path.join(cluster.mount_point, "shared"))
        os.chmod(os.path.join(cluster.mount_point, "shared"), 0o777)

        def submit(user, count, *more):
            path = os.path.join(cluster.directory, f"{user}.conf")
            with open(path, "w") as file:
                file.write(tasks(count, "/shared"))
            return subprocess.Popen(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", cluster.binary,
                                     "--server", cluster.endpoint, "submit", "--no-cache", *more, path],
                                    stdout=subprocess.DEVNULL, cwd="/")

        def small_s():
            began = time.time()
            assert submit(USERS[1], 10, "--watch").wait() == 0
            return time.time() - began

        alone = small_s()
        assert submit(USERS[0], backlog).wait() == 0
        time.sleep(2)
        among = small_s()
        job = next(job for job in cluster.json("job", "list", "--all") if job["uid"] == USERS[0])
        print(json.dumps({"what": "users", "backlog": backlog, "alone_s": round(alone, 2), "among_s": round(among, 2),
                          "backlog_then": job.get("tasks_by_state")}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="4,50,100")
    parser.add_argument("--operations", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--only", default="nodes,users")
    options = parser.parse_args()
    if "nodes" in options.only.split(","):
        for count in map(int, options.nodes.split(",")):
            of_nodes(count, options.operations)
    if "users" in options.only.split(","):
        of_users(options.tasks)


if __name__ == "__main__":
    main()
