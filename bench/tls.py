#!/usr/bin/env python3
"""Cost of TLS: the same cluster with and without it, all on loopback.

  tls.py [--rounds 5] [--mib 1024]

`read` and `write` transfer one file between the node and a client by HTTP, with the cluster in /dev/shm, so that no disk is the
limit. `call` is a whole `tidemill ls /` by TCP: process, connection, two requests. Prints JSON lines: medians of both in MB/s or
calls per second, and the ratio of TLS to plain, with alternating rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

from local_cluster import BINARY, Cluster

CALLS = 50


def timed(work):
    start = time.monotonic()
    work()
    return time.monotonic() - start


class Client:
    """Runs commands against a cluster as from another host."""

    def __init__(self, cluster, tls):
        with open(os.path.join(cluster.directory, "server/address")) as file:
            address = file.read().strip()
        token = os.path.join(cluster.directory, "server/token")
        self.command = [BINARY, "-q", "--tls", tls, "--server", address, "--token-file", token]

    def __call__(self, *args):
        subprocess.run([*self.command, *args], check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()
    rates = {}
    with Cluster(directory="/dev/shm", tls="off") as plain, Cluster(directory="/dev/shm", tls="on") as secure:
        source = os.path.join(plain.directory, "source")
        with open(source, "wb") as file:
            for _ in range(options.mib):
                file.write(os.urandom(1 << 20))
        clients = {"plain": Client(plain, "off"), "tls": Client(secure, "on")}
        for _ in range(options.rounds):
            for way, client in clients.items():
                work = {"write": (options.mib * 1.048576, lambda: client("put", source, "/file")),
                        "read": (options.mib * 1.048576, lambda: client("cat", "/file")),
                        "call": (CALLS, lambda: [client("ls", "/") for _ in range(CALLS)])}
                for what, (amount, run) in work.items():
                    rates.setdefault(what, {}).setdefault(way, []).append(amount / timed(run))
                client("rm", "/file")
                time.sleep(3)  # its bytes are removed a little later
    for what, ways in rates.items():
        medians = {way: round(statistics.median(values), 1) for way, values in ways.items()}
        unit = "calls_per_sec" if what == "call" else "mb_per_sec"
        print(json.dumps({"what": what, "unit": unit, **medians, "tls_to_plain": round(medians["tls"] / medians["plain"], 3),
                          "rounds": options.rounds}))


if __name__ == "__main__":
    main()
