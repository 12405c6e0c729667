#!/usr/bin/env python3
"""One file on several nodes: on one host against a do-nothing loopback, over links against the sum of the links.

  cargo build --release && bench/striped.py [--rounds 5] [--size-mib 1024] [--only local,links]

`local`: four nodes on this host. The file is written and read through the mount in pieces of 1 MiB. The peer is the loopback
without passthrough (`--plain`): in both, every byte passes through a process. The time of a write ends with close; a second
measurement has fsync before that. (The loopback does not pass fsync on, so its file is synced below.) Reads are cold (no cache at
all), with the cache of the file below warm and none of the mount's, and warm. `links`: four node hosts in network namespaces on
links of 1 Gbit/s, and a client on a link of 4 Gbit/s. The ratio is the share of the sum of the links. `limit` is the rate of as many
plain TCP streams from the same hosts in the same rounds (the links also carry headers).

Rounds of ours and the peer alternate. Prints JSON lines with medians; a `ratio` above 1 is faster. Needs root.
"""
import argparse
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "testbed")]
import testbed  # noqa: E402
from local_cluster import BINARY, Cluster, Loopback  # noqa: E402
from mount import MIB, Bench, read, timed, write  # noqa: E402

GOAL_LOCAL, GOAL_LINKS = 1.0, 0.9
# Server that sends zeros to each client, or receives its bytes, as many as the client asks for.
TCP_PORT = 7100
TCP_SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("ready", flush=True)
    while True:
        peer, piece = server.accept()[0], bytearray(1 << 20)
        with peer:
            left = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "big", signed=True)
            if left > 0:
                peer.sendall(bytes(left))
            while left < 0:
                left += peer.recv_into(piece)
            peer.sendall(b".")
"""
TCP_CLIENT = """
import socket, sys, threading, time
def stream(address, count):
    with socket.create_connection((address, int(sys.argv[1]))) as peer:
        piece, left = bytearray(1 << 20), abs(count) + 1
        peer.sendall(count.to_bytes(8, "big", signed=True))
        if count < 0:
            peer.sendall(bytes(-count))
            left = 1
        while left:
            left -= peer.recv_into(piece)
threads = [threading.Thread(target=stream, args=(address, int(sys.argv[2]))) for address in sys.argv[3:]]
begun = time.perf_counter()
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(time.perf_counter() - begun)
"""


def forget(path):
    """Drops the pages of this file, but none of the files below."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def forget_all():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def remove(*paths):
    for path in paths:
        if os.path.exists(path):
            os.unlink(path)
    os.sync()


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def local(options):
    size = options.size_mib * MIB
    with Cluster(nodes=options.nodes, cores=1, mount=True, directory=options.dir, binary=options.binary) as cluster, \
            Loopback("--plain", directory=options.dir, binary=options.binary) as loopback:
        cluster.tidemill("mkdir", "/striped")
        cluster.tidemill("set", "/striped", "stripe=1MiB")
        ours, peer, below = f"{cluster.mount_point}/striped/file", f"{loopback.point}/file", f"{loopback.source}/file"

        def measure(what, ours, peer, between):
            Bench(options, None, None, None).pair(f"striped over {options.nodes}, {what}", ours, peer, None, size, 0,
                                                  GOAL_LOCAL, between, "loopback --plain")

        measure("write 1 MiB", lambda: write(ours, size, MIB), lambda: write(peer, size, MIB), lambda: remove(ours, peer))
        measure("write 1 MiB, fsync", lambda: write(ours, size, MIB, os.fsync),
                lambda: write(peer, size, MIB, lambda _: sync(below)), lambda: remove(ours, peer))
        write(ours, size, MIB), write(peer, size, MIB)
        for what, between in (("cold", forget_all), ("warm below", lambda: (forget(ours), forget(peer))), ("warm", lambda: None)):
            measure(f"read 1 MiB, {what}", lambda: read(ours, MIB), lambda: read(peer, MIB), between)


def tcp(cluster, servers, count):
    """Returns the seconds for `count` plain bytes in one stream per node; with a negative count the client sends them."""
    share = str(count // len(servers))
    return float(cluster.client.call(sys.executable, "-c", TCP_CLIENT, str(TCP_PORT), share, *(host.address for host in servers)))


def links(options):
    for tls in options.tls.split(","):
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir=options.dir) as directory:
            cluster = testbed.Cluster(options, f"{directory}/cluster", client_mbit=options.nodes * options.rate_mbit, tls=tls)
            try:
                linked(options, cluster, f"TLS {tls}")
            finally:
                cluster.remove()


def linked(options, cluster, label):
    size = options.size_mib * MIB
    for host in cluster.nodes:
        host.start(sys.executable, "-c", TCP_SERVER, host.address, str(TCP_PORT), log=f"{cluster.directory}/tcp.log")
    cluster.mount()
    cluster.tidemill("mkdir", "/striped")
    cluster.tidemill("set", "/striped", "stripe=1MiB")
    path = f"{cluster.mount_point}/striped/file"
    actions = {"write": (lambda: remove(path), lambda: write(path, size, MIB), -size, "sent"),
               "read": (lambda: forget(path), lambda: read(path, MIB), size, "received")}
    ideal = size / (options.nodes * options.rate_mbit * 125_000)
    times = {what: {"ours": [], "limit": [], "peer": []} for what in actions}
    for _ in range(options.rounds):
        for what, (before, action, count, way) in actions.items():
            before()
            carried = cluster.client.counters()[way]
            times[what]["ours"].append(timed(action))
            if cluster.client.counters()[way] - carried < size:
                raise SystemExit(f"{what}: not all bytes went over the link")
            times[what]["limit"].append(tcp(cluster, cluster.nodes, count))
            times[what]["peer"].append(ideal)
    for what, taken in times.items():
        name = f"striped over {options.nodes} links of {options.rate_mbit} Mbit/s, {label}, {what} 1 MiB"
        Bench.print(name, "sum of the links", taken, size, 0, GOAL_LINKS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rate-mbit", type=int, default=1000, help="rate of a node's link; the client's link has the sum")
    parser.add_argument("--only", default="local,links")
    parser.add_argument("--tls", default="on,off", help="values of --tls for the clusters over links")
    parser.add_argument("--dir", help="directory on ext4 (default: the temporary directory)")
    parser.add_argument("--quick", action="store_true", help="2 rounds of 64 MiB, TLS on only")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.size_mib, options.tls = 2, 64, "on"
    options.client_cores = options.server_cores = options.node_cores = os.cpu_count()
    for part in options.only.split(","):
        {"local": local, "links": links}[part](options)


if __name__ == "__main__":
    sys.exit(main())
