#!/usr/bin/env python3
"""Sums of the chunks of a file by URL, against fetching each by URL and summing it with numpy, the client alike.

  reductions.py [--rounds 3] [--chunks 1000] [--mib 4] [--threads 8]

One element with as many cores as the machine; `f32`, not compressed and with shuffle and zlib (of values with 12 bits of noise). Each thread
keeps its connection. Prints JSON lines: medians of chunks per second and GB/s of what is summed, and the ratio, rounds alternating.
Results are compared. Without numpy it is left out.
"""
import argparse
import base64
import http.client
import json
import os
import re
import ssl
import statistics
import threading
import time
import urllib.parse
import zlib

import numpy

from local_array import Array


class Client:
    def __init__(self, array):
        self.url = open(f"{array.folder}/server/address").read().strip()
        token = f"{array.folder}/server/token"
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
        # The first item of the map: its key, and four bytes.
        return numpy.frombuffer(answer[8:12], "<f4")[0]

    def fetched(self, path, chunk):
        offset, size, codecs, values = chunk
        data = self.ask("GET", f"/files{path}", Range=f"bytes={offset}-{offset + size - 1}")
        if codecs:
            planes = numpy.frombuffer(zlib.decompress(data), "u1").reshape(4, values)
            data = planes.T.copy()
        return numpy.frombuffer(data, "<f4").sum(dtype="f8")


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


def store(array, path, pieces):
    """Puts pieces one after the other; gives where each is."""
    local, places, offset = f"{array.folder}/local", [], 0
    with open(local, "wb") as file:
        for piece in pieces:
            file.write(piece)
            places.append((offset, len(piece)))
            offset += len(piece)
    array.tidemill("put", local, path)
    os.remove(local)
    return places


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rounds": 3, "chunks": 1000, "mib": 4, "threads": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    values = options.mib << 18
    chance = numpy.random.default_rng(7)
    smooth = numpy.linspace(0, 300, values, dtype="f4")
    raw = [(smooth + chance.integers(0, 4096, values) / 4096).astype("<f4") for _ in range(4)]
    packed = [zlib.compress(one.view("u1").reshape(values, 4).T.copy(), 4) for one in raw]
    codecs = {"compression": {"id": "zlib"}, "filters": [{"id": "shuffle", "element_size": 4}]}
    with Array(elements=1, cores=os.cpu_count(), folder="/dev/shm") as array:
        client = Client(array)
        for name, pieces, how in (("raw", raw, {}), ("zlib", packed, codecs)):
            places = store(array, f"/{name}", [bytes(piece) for piece in pieces])
            chunks = [(*places[number % 4], how, values) for number in range(options.chunks)]
            rates, sums = {"reduced": [], "fetched": []}, {}
            for _ in range(options.rounds):
                for way in rates:
                    took, sums[way] = in_threads(options.threads, lambda c: getattr(client, way)(f"/{name}", c), chunks)
                    rates[way].append(options.chunks / took)
            if not numpy.allclose(sums["reduced"], sums["fetched"], rtol=1e-6):
                raise SystemExit(f"{name}: the sums differ")
            medians = {way: statistics.median(rate) for way, rate in rates.items()}
            print(json.dumps({"benchmark": "reductions", "case": name, "mib": options.mib, "threads": options.threads,
                              "chunks_per_s": {way: round(rate, 1) for way, rate in medians.items()},
                              "gb_per_s": round(medians["reduced"] * values * 4 / 1e9, 2),
                              "ratio": round(medians["reduced"] / medians["fetched"], 2)}), flush=True)


if __name__ == "__main__":
    main()
