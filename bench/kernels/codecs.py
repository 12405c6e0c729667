#!/usr/bin/env python3
"""Kernels that compress and encrypt, against the usual programs, file to file from a warm page cache.

  cargo build --release -p tidemill-compute --example kernel_write
  bench/kernels/codecs.py [--mib 64] [--rounds 5] [NAME ...]

Needs gzip, zstd, lz4, bzip2 and openssl, and igzip (Debian's package isal) for one comparison. Ours and the peer take turns, with
one thread each unless stated otherwise. Each side reads the files of the other, and contents are compared. Prints JSON lines:
medians in MB of content per second; the median of the rounds' ratios of the peer's time to ours; and the ratios of content to file
size. The text is that of /usr/include and /usr/share; numbers are a smooth signal with noise, as f32.
"""
import argparse
import array
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import time

from driver import ROOT, Ours


def text(path, size):
    with open(path, "wb") as to:
        for root in ("/usr/include", "/usr/share/doc", "/usr/lib/python3", "/usr/share/perl"):
            for directory, directories, names in os.walk(root):
                directories.sort()
                for name in sorted(names):
                    file = os.path.join(directory, name)
                    if os.path.isfile(file) and not os.path.islink(file) and not name.endswith((".gz", ".pyc", ".so")):
                        with open(file, "rb") as source:
                            to.write(source.read()[:size - to.tell()])
                    if to.tell() >= size:
                        return
        # A small system has less text, which is repeated, at a distance above all windows except that of zstd -22.
        with open(path, "rb") as source:
            while to.tell() < size:
                to.flush()
                to.write(source.read(size - to.tell()))


def numbers(path, size):
    chance = random.Random(1)
    values = array.array("f", (math.sin(i / 500) + round(chance.gauss(0, 0.01), 3) for i in range(1 << 20)))
    with open(path, "wb") as to:
        while to.tell() < size:
            to.write(values.tobytes()[:size - to.tell()])


def timed(command, source, target):
    start = time.perf_counter()
    with open(source, "rb") as stdin, open(target, "wb") as stdout:
        subprocess.run(command, stdin=stdin, stdout=stdout, check=True)
    return time.perf_counter() - start


def same(first, second):
    subprocess.run(["cmp", first, second], check=True)


def compare(ours, what, kernel, source, targets, command, peer, rounds, goal):
    mine, theirs, ratios = [], [], []
    for number in range(rounds + 1):
        for target in targets:
            if os.path.exists(target):
                os.unlink(target)
        m = ours.run(targets[0], source, *kernel)[0]
        t = timed(command, source, targets[1])
        if number:
            mine.append(m)
            theirs.append(t)
            ratios.append(t / m)
    content = max(os.path.getsize(path) for path in (source, *targets))
    speed = [round(content / statistics.median(side) / 1e6) for side in (mine, theirs)]
    packed = [round(content / min(os.path.getsize(target), os.path.getsize(source)), 3) for target in targets]
    print(json.dumps({"what": what, "peer": peer, "bytes": content, "mb_per_s": speed[0], "peer_mb_per_s": speed[1],
                      "ratio": round(statistics.median(ratios), 2), "packed": packed[0], "peer_packed": packed[1],
                      "goal": goal}), flush=True)


PAIRS = [
    # Kernel with arguments, command, goal, and the decompressors of both.
    ("gzip", ["level=6"], ["gzip", "-6"], 2.5), ("gzip", ["level=5"], ["gzip", "-6"], 2.5),
    ("gzip", ["level=1"], ["igzip", "-1"], 1), ("gzip", ["level=1"], ["gzip", "-1"], None),
    ("zstd", [], ["zstd", "-3", "--single-thread"], None), ("zstd", ["level=1"], ["zstd", "-1", "--single-thread"], None),
    ("lz4", [], ["lz4", "-1"], None), ("bzip2", [], ["bzip2", "-9"], None),
]
BACK = {"gzip": ("gunzip", ["gzip", "-d"]), "zstd": ("unzstd", ["zstd", "-d", "--single-thread"]),
        "lz4": ("unlz4", ["lz4", "-d"]), "bzip2": ("bunzip2", ["bzip2", "-d"])}


def codecs(ours, directory, name, content, options):
    mine, theirs, back = f"{directory}/ours", f"{directory}/peer", f"{directory}/back"
    for kernel, args, command, goal in PAIRS:
        if not wanted(kernel, options):
            continue
        if not here(kernel, command[0]):
            continue
        rounds = min(options.rounds, 3) if kernel == "bzip2" else options.rounds
        compare(ours, " ".join([kernel, *args, "of", name]), [kernel, *args], content, [mine, theirs], command + ["-c"],
                " ".join(command), rounds, goal)
        unpack, program = BACK[kernel]
        timed(program + ["-c"], mine, back)
        same(content, back)
        ours.run(back, theirs, unpack)
        same(content, back)
    for kernel, (unpack, program) in BACK.items():
        if wanted(unpack, options) and here(unpack, kernel):
            packed = f"{directory}/packed"
            timed([kernel, "-c"], content, packed)
            compare(ours, f"{unpack} of {name}", [unpack], packed, [mine, theirs], program + ["-c"], " ".join(program),
                    options.rounds, None)
            same(mine, theirs)


def threads(ours, directory, content, options):
    """Compares two threads with one."""
    for kernel in ("gzip", "zstd", "lz4", "bzip2"):
        if not wanted(kernel, options):
            continue
        ratios = []
        for _ in range(options.rounds if kernel != "bzip2" else 3):
            one, two = (ours.run(f"{directory}/{count}", content, kernel, f"threads={count}")[0] for count in (1, 2))
            ratios.append(one / two)
        print(json.dumps({"what": f"{kernel} of text, two threads", "peer": "one thread",
                          "ratio": round(statistics.median(ratios), 2), "goal": 1.8}), flush=True)


def cipher(ours, directory, content, options):
    """Compares in memory, as `openssl speed` measures, in chunks of 16 KiB; and file to file."""
    key = f"{directory}/key"
    with open(key, "wb") as to:
        to.write(os.urandom(32))
    mine, back = f"{directory}/ours", f"{directory}/back"
    size = os.path.getsize(content)
    for kernel, source, target in (("encrypt", content, mine), ("decrypt", mine, back)):
        ratios, speeds = [], []
        for _ in range(options.rounds):
            ours.run(target, source, kernel, f"key={key}")
            memory = ours.run("", source, kernel, f"key={key}")[0]
            command = ["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "16384", "-evp", "aes-256-gcm"]
            command += ["-decrypt"] if kernel == "decrypt" else []
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            peer = float(re.findall(r"([\d.]+)k", printed)[-1]) * 1000
            file = ours.run(target, source, kernel, f"key={key}")[0]
            speeds.append((size / memory, peer, size / file))
            ratios.append(size / memory / peer)
        speed = [round(statistics.median(side) / 1e6) for side in zip(*speeds)]
        print(json.dumps({"what": kernel, "peer": "openssl speed aes-256-gcm", "bytes": size, "mb_per_s": speed[0],
                          "peer_mb_per_s": speed[1], "ratio": round(statistics.median(ratios), 2),
                          "file_to_file_mb_per_s": speed[2], "goal": 1.5}), flush=True)
    same(content, back)


def here(what, program):
    """Returns whether a peer's program is installed; reports a missing program."""
    found = shutil.which(program)
    if not found:
        print(json.dumps({"what": what, "peer": program, "left_out": f"there is no {program} here"}), flush=True)
    return bool(found)


def wanted(kernel, options):
    return not options.names or kernel in options.names


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("names", nargs="*", help="names of kernels, or threads")
    options = parser.parse_args()
    directory = f"{ROOT}/bench/out/kernels"
    os.makedirs(directory, exist_ok=True)
    ours = Ours()
    contents = {}
    for name, make in (("text", text), ("numbers", numbers)):
        contents[name] = f"{directory}/codec-{name}-{options.mib}"
        if not os.path.exists(contents[name]):
            make(contents[name], options.mib << 20)
        codecs(ours, directory, name, contents[name], options)
    if not options.names or "threads" in options.names:
        options.names = [name for name in options.names if name != "threads"]
        threads(ours, directory, contents["text"], options)
    if wanted("encrypt", options) and here("encrypt", "openssl"):
        cipher(ours, directory, contents["numbers"], options)


if __name__ == "__main__":
    main()
