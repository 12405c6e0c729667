#!/usr/bin/env python3
"""Sums of the chunks of a file by URL, against a client that fetches each chunk by URL and sums it with numpy.

  reductions.py [--rounds 3] [--chunks 1000] [--mib 4] [--threads 8] [--reductionist PROGRAM --s3 PROGRAM]

There is one node with as many cores as the machine. The values are `f32`, uncompressed and with shuffle and zlib (values with 12
bits of noise). Each thread keeps its connection. Prints JSON lines: medians of chunks per second and of GB/s of summed data, and the
ratio, with alternating rounds. Results are compared. Without numpy this peer is skipped. With --reductionist (`cargo install --locked
reductionist`) and --s3 (versitygw, from Go's registry) the same requests also use Reductionist with an S3 server on this machine, both
by plain HTTP, with the same bytes on the same disk; our cluster uses TLS.
"""
import argparse
import atexit
import base64
import http.client
import json
import os
import re
import ssl
import socket
import statistics
import subprocess
import threading
import time
import urllib.parse
import zlib

import numpy

from local_cluster import Cluster


class Client:
    def __init__(self, cluster):
        self.url = open(f"{cluster.directory}/server/address").read().strip()
        token = f"{cluster.directory}/server/token"
        secret = re.search(r"^token: (.*)$", open(token).read(), re.M)[1]
        self.headers = {"Authorization": "Basic " + base64.b64encode(f"root:{secret}".encode()).decode()}
        self.context = ssl.create_default_context(cafile=token)
        self.own = threading.local()

    def ask(self, method, path, body=None, **headers):
        if not hasattr(self.own, "connection"):
            address = urllib.parse.urlparse(self.url)
            self.own.connection = http.client.HTTPSConnection(address.hostname, address.port, context=self.context)
        self.own.connection.request(method, path, body, {**self.headers, **headers})
        answer = self.own.connection.getresponse()
        data = answer.read()
        if answer.status not in (200, 206):
            raise SystemExit(f"{path}: {answer.status} {data[:500]}")
        return data

    def reduced(self, path, chunk):
        offset, size, codecs, values = chunk
        request = {"interface_type": "https", "url": f"{self.url}/files{path}", "dtype": "float32", "offset": offset,
                   "size": size, "shape": [values], **codecs}
        answer = self.ask("POST", "/v2/sum/", json.dumps(request))
        # The first item of the map has its key and four bytes.
        return numpy.frombuffer(answer[8:12], "<f4")[0]

    def fetched(self, path, chunk):
        offset, size, codecs, values = chunk
        data = self.ask("GET", f"/files{path}", Range=f"bytes={offset}-{offset + size - 1}")
        if codecs:
            planes = numpy.frombuffer(zlib.decompress(data), "u1").reshape(4, values)
            data = planes.T.copy()
        return numpy.frombuffer(data, "<f4").sum(dtype="f8")


class Peer:
    """Reductionist and its S3 server, with their defaults."""

    def __init__(self, options, directory):
        self.own, self.started = threading.local(), []
        atexit.register(self.end)
        keys = {"ROOT_ACCESS_KEY": "bench", "ROOT_SECRET_KEY": "benchbench"}
        self.buckets = f"{directory}/s3"
        os.makedirs(f"{self.buckets}/bench")
        self.s3, self.port = free_port(), free_port()
        self.start([options.s3, "--port", f"127.0.0.1:{self.s3}", "posix", self.buckets], self.s3, keys)
        self.start([options.reductionist, "--host", "127.0.0.1", "--port", str(self.port)], self.port, {})
        self.headers = {"Authorization": "Basic " + base64.b64encode(b"bench:benchbench").decode(), "Content-Type": "application/json"}

    def start(self, command, port, environment):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.started.append(subprocess.Popen(command, env={**os.environ, **environment}, **quiet))
        for _ in range(100):
            try:
                return socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{command[0]} does not answer")

    def reduced(self, path, chunk):
        offset, size, codecs, values = chunk
        request = {"interface_type": "s3", "url": f"http://127.0.0.1:{self.s3}/bench{path}", "dtype": "float32",
                   "byte_order": "little", "offset": offset, "size": size, "shape": [values], "order": "C", **codecs}
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        self.own.connection.request("POST", "/v2/sum/", json.dumps(request), self.headers)
        answer = self.own.connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"the peer: {answer.status} {data[:500]}")
        # The value is text or an array of numbers, depending on the build.
        at = data.index(b"bytes") + 5
        if data[at] == 0x44:
            return numpy.frombuffer(data[at + 1:at + 5], "<f4")[0]
        numbers, at = [], at + 1
        for _ in range(4):
            numbers.append(data[at] if data[at] < 24 else data[at + 1])
            at += 1 if data[at] < 24 else 2
        return numpy.frombuffer(bytes(numbers), "<f4")[0]

    def end(self):
        for process in self.started:
            process.terminate()
            process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def in_threads(count, work, chunks):
    results, places = [None] * len(chunks), iter(range(len(chunks)))
    lock = threading.Lock()

    def run():
        while True:
            with lock:
                place = next(places, None)
            if place is None:
                return
            results[place] = work(chunks[place])

    threads = [threading.Thread(target=run) for _ in range(count)]
    start = time.monotonic()
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    return time.monotonic() - start, numpy.array(results, "f8")


def store(cluster, path, pieces, peer):
    """Writes pieces in sequence, and returns their places."""
    local, places, offset = f"{cluster.directory}/local", [], 0
    with open(local, "wb") as file:
        for piece in pieces:
            file.write(piece)
            places.append((offset, len(piece)))
            offset += len(piece)
    cluster.tidemill("put", local, path)
    if peer:
        os.rename(local, f"{peer.buckets}/bench{path}")
    else:
        os.remove(local)
    return places


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rounds": 3, "chunks": 1000, "mib": 4, "threads": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--reductionist", help="program of Reductionist")
    parser.add_argument("--s3", help="program of versitygw")
    options = parser.parse_args()
    values = options.mib << 18
    chance = numpy.random.default_rng(7)
    smooth = numpy.linspace(0, 300, values, dtype="f4")
    raw = [(smooth + chance.integers(0, 4096, values) / 4096).astype("<f4") for _ in range(4)]
    packed = [zlib.compress(one.view("u1").reshape(values, 4).T.copy(), 4) for one in raw]
    codecs = {"compression": {"id": "zlib"}, "filters": [{"id": "shuffle", "element_size": 4}]}
    with Cluster(nodes=1, cores=os.cpu_count(), directory="/dev/shm") as cluster:
        client = Client(cluster)
        peer = Peer(options, cluster.directory) if options.reductionist else None
        ways = {"reduced": client.reduced, "fetched": client.fetched, **({"reductionist": peer.reduced} if peer else {})}
        for name, pieces, how in (("raw", raw, {}), ("zlib", packed, codecs)):
            places = store(cluster, f"/{name}", [bytes(piece) for piece in pieces], peer)
            chunks = [(*places[number % 4], how, values) for number in range(options.chunks)]
            rates, sums = {way: [] for way in ways}, {}
            for _ in range(options.rounds):
                for way, ask in ways.items():
                    took, sums[way] = in_threads(options.threads, lambda c: ask(f"/{name}", c), chunks)
                    rates[way].append(options.chunks / took)
            # The peer sums in the type of the numbers.
            exact = {"reduced": 1e-6, "fetched": 0, "reductionist": 1e-3}
            if not all(numpy.allclose(sums["fetched"], some, rtol=exact[way]) for way, some in sums.items()):
                raise SystemExit(f"{name}: the sums differ: { {way: list(some[:4]) for way, some in sums.items()} }")
            medians = {way: statistics.median(rate) for way, rate in rates.items()}
            print(json.dumps({"benchmark": "reductions", "case": name, "mib": options.mib, "threads": options.threads,
                              "chunks_per_s": {way: round(rate, 1) for way, rate in medians.items()},
                              "gb_per_s": round(medians["reduced"] * values * 4 / 1e9, 2),
                              "ratio": {way: round(medians["reduced"] / rate, 2) for way, rate in medians.items()}}), flush=True)


if __name__ == "__main__":
    main()
