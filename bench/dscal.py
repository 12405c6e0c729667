#!/usr/bin/env python3
"""DSCAL of Active Storage (§5.1, Fig. 4): multiplies striped files on their nodes, against a client that multiplies through its mount.

  cargo build --release && bench/dscal.py [--nodes 1,2,4,8] [--files 16] [--size-mib 64] [--rounds 3] [--out DIRECTORY]

Each node has 0.25 cores and a link of 1 Gbit/s; the client has one core and such a link (--node-cores, --client-cores, --rate-mbit). Both run the program
`examples/dscal/dscal.c`. Times end when all outputs are sealed. The first numbers of each output are compared with the expected values. Rounds of ours and the peer
alternate, each with cold mounts. Bytes are those on the nodes' links during the job. Prints JSON lines with medians (`ratio` above 1: the cluster is faster). With --out it
writes fig4a.svg (time) and fig4b.svg (bytes). Needs root and cc.
"""
import argparse
import array as numbers
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]
import figures  # noqa: E402
import testbed  # noqa: E402
from local_cluster import BINARY  # noqa: E402

EXAMPLE = os.path.join(HERE, "..", "examples", "dscal")
MIB = 1 << 20
SCALAR = 2.5
GOAL_RATIO, GOAL_BYTES = 1.0, 0.001


def carried(hosts):
    return {host.name: sum(host.counters().values()) for host in hosts}


def remove(cluster, directory):
    cluster.client.call("rm", "-rf", os.path.join(cluster.mount_point, "dscal", directory))
    # Dirty pages of earlier rounds would be written back during the next round.
    os.sync()
    time.sleep(1.5)


def check(cluster, names):
    for name in names:
        with open(os.path.join(cluster.mount_point, "dscal", "out", name), "rb") as file:
            found = numbers.array("d", file.read(4096 * 8))
        if list(found) != [i * SCALAR for i in range(4096)]:
            raise SystemExit(f"{name} has wrong values")


def timed(cluster, action, names):
    """Returns the seconds, and the bytes on the nodes' links."""
    cluster.mount()
    before, begun = carried(cluster.nodes), time.perf_counter()
    action()
    seconds = time.perf_counter() - begun
    after = carried(cluster.nodes)
    check(cluster, names)
    remove(cluster, "out")
    cluster.unmount()
    return seconds, sum(after.values()) - sum(before.values())


def measure(options, count, program):
    options.nodes = count
    with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
        os.chmod(directory, 0o755)  # kernels run as other users
        cluster = testbed.Cluster(options, f"{directory}/cluster", tls="on")
        try:
            cluster.mount()
            root = os.path.join(cluster.mount_point, "dscal")
            cluster.client.call("mkdir", "-p", os.path.join(root, "in"))
            cluster.tidemill("set", "/dscal", "stripe=1MiB")
            cluster.client.call("cp", program, os.path.join(root, "dscal"))
            names = [f"n{index:02}" for index in range(options.files)]
            data = numbers.array("d", range(options.size_mib * MIB // 8)).tobytes()
            source = os.path.join(directory, "data")
            with open(source, "wb") as file:
                file.write(data)
            for name in names:
                cluster.client.call("cp", source, os.path.join(root, "in", name))
            cluster.unmount()

            def client():
                cluster.client.call("mkdir", os.path.join(root, "out"))
                for name in names:
                    cluster.client.call(program, os.path.join(root, "in", name), os.path.join(root, "out", name), str(SCALAR))
                cluster.client.call("sync", "-f", os.path.join(root, "out"))

            def inside():
                job = cluster.ask("submit", "--no-cache", os.path.join(EXAMPLE, "dscal.toml"))["job"]
                cluster.tidemill("job", "watch", str(job))

            times = {"ours": [], "peer": []}
            for _ in range(options.rounds):
                times["ours"].append(timed(cluster, inside, names))
                times["peer"].append(timed(cluster, client, names))
            return {who: [statistics.median(values) for values in zip(*all_of)] for who, all_of in times.items()}
        finally:
            cluster.remove()


def parser_of(description, rounds):
    """Returns a parser with the flags for the cluster and the client."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--node-cores", type=float, default=0.25)
    parser.add_argument("--client-cores", type=float, default=1.0)
    parser.add_argument("--server-cores", type=float, default=1.0)
    parser.add_argument("--rate-mbit", type=int, default=1000)
    parser.add_argument("--dir", help="directory on ext4 (default: the temporary directory)")
    parser.add_argument("--out", help="directory for the figures")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    return parser


def main():
    parser = parser_of(__doc__, 3)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--size-mib", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="2 nodes, 2 files of 16 MiB, one round")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.files, options.size_mib, options.rounds = "2", 2, 16, 1
    counts = [int(count) for count in options.nodes.split(",")]
    size = options.files * options.size_mib * MIB
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "dscal")
        subprocess.run(["cc", "-O2", "-o", program, os.path.join(EXAMPLE, "dscal.c")], check=True)
        os.chmod(directory, 0o755)
        for count in counts:
            found = measure(options, count, program)
            (ours, moved), (peer, carried_by_peer) = found["ours"], found["peer"]
            rows.append((count, ours, peer, moved, carried_by_peer))
            print(json.dumps({"what": f"DSCAL, {count} nodes of {options.node_cores} cores, client of {options.client_cores}",
                              "size_mib": size // MIB, "seconds": round(ours, 3), "client_seconds": round(peer, 3),
                              "ratio": round(peer / ours, 3), "goal": GOAL_RATIO, "link_bytes": moved,
                              "client_link_bytes": carried_by_peer, "bytes_of_data": round(moved / size, 6),
                              "goal_bytes": GOAL_BYTES}), flush=True)
    if options.out:
        os.makedirs(options.out, exist_ok=True)
        time_of = [(f"{row[0]}", [[("compute", row[1])], [("I/O", row[2])]]) for row in rows]
        bytes_of = [(f"{row[0]}", [[("links", row[3] / 1e6)], [("shuffling", row[4] / 1e6)]]) for row in rows]
        for name, title, unit, groups in (("fig4a.svg", "DSCAL: time in the cluster, and on a client", "s", time_of),
                                          ("fig4b.svg", "DSCAL: bytes over nodes' links, cluster and client", "MB", bytes_of)):
            with open(os.path.join(options.out, name), "w") as file:
                file.write(figures.bars(title, unit, groups))


if __name__ == "__main__":
    sys.exit(main())
