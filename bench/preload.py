#!/usr/bin/env python3
"""Programs without a mount, against the mount and the ext4 below; and the cost of the library at the start of a program.

  cargo build --release --workspace && bench/preload.py [--rounds 7] [--size-mib 512] [--starts 200] [--files 2000] [--only-async]

Each round runs all ways in turn. Prints one JSON line for each measurement, with the medians and the median ratio (ours to the peer;
above 1 is faster). Data is warm in the page cache. The mount and the programs without a mount have separate clusters, so that neither
waits for the other. Needs root.
`--only-async`: writes of 1 MiB to a file that is closed without a wait (`--async`), from open to close, as the program sees them. The
peer is memcpy of as many bytes to memory that was used before. Each has 128 MiB, in turn. The directory of the file system is in shared
memory. `stored` is the time until all bytes are stored, for which no program waits.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

from local_cluster import TARGET, Cluster, wait

LIBRARY = os.environ.get("TIDEMILL_PRELOAD_LIBRARY", os.path.join(TARGET, "libtidemill_preload.so"))


def timed(command, env=None):
    start = time.perf_counter()
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def environment(cluster):
    """Returns the environment of programs under `tidemill exec`."""
    directory = os.path.join(cluster.directory, "preload")
    out = subprocess.run([cluster.binary, "--server", cluster.endpoint, "exec", "--data-dir", directory, "--library", LIBRARY,
                          "--", "env"], check=True, capture_output=True, text=True).stdout
    lines = [line.split("=", 1) for line in out.splitlines() if line.startswith(("LD_PRELOAD=", "TIDEMILL_PRELOAD"))]
    return dict(os.environ, **dict(lines))


# Prints the seconds of one round: the file, and the copy to memory.
WRITER = """
import os, sys, time
MIB, count = 1 << 20, int(sys.argv[2])
data, ring = bytes(b'x') * MIB, bytearray(64 * MIB)
ring[:] = b'y' * len(ring)
begun = time.perf_counter()
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for _ in range(count): assert os.write(fd, data) == MIB
os.close(fd)
seen = time.perf_counter() - begun
view, begun = memoryview(ring), time.perf_counter()
for number in range(count): view[number % 64 * MIB:(number % 64 + 1) * MIB] = data
print(seen, time.perf_counter() - begun)
"""


def only_async(args):
    with Cluster() as cluster, tempfile.TemporaryDirectory(prefix="tidemill-bench-", dir="/dev/shm") as directory:
        preload = [cluster.binary, "--server", cluster.endpoint, "exec", "--data-dir", directory, "--in-place", "false"]
        serving = subprocess.Popen([*preload, "--serve"], stdout=subprocess.DEVNULL)
        wait("the file system", lambda: os.path.exists(os.path.join(directory, "s")))
        times = {"preload": [], "memcpy": [], "stored": []}
        for number in range(args.rounds + 1):
            begun = time.perf_counter()
            printed = subprocess.run([*preload, "--library", LIBRARY, "--async", "--", "python3", "-c", WRITER, f"/t/{number % 2}", "128"], check=True, capture_output=True, text=True).stdout
            subprocess.run([*preload, "--wait"], check=True)
            # The first round has unused memory.
            if number > 0:
                times["stored"].append(time.perf_counter() - begun)
                for name, seconds in zip(["preload", "memcpy"], map(float, printed.split())):
                    times[name].append(seconds)
        tell("1 MiB writes that are asynchronous", times, "preload", "memcpy", "s for 128 MiB")
        serving.terminate()
        serving.wait()


def starts(count, env):
    start = time.perf_counter()
    for _ in range(count):
        subprocess.run(["/bin/true"], env=env, check=True)
    return (time.perf_counter() - start) / count


def tell(what, times, ours, peer, unit):
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratio = statistics.median(b / a for a, b in zip(times[ours], times[peer]))
    print(json.dumps({"what": what, "ratio": round(ratio, 3), "peer": peer,
                      **{name: round(value, 6) for name, value in medians.items()}, "unit": unit}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size-mib", type=int, default=512)
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--only-async", action="store_true")
    args = parser.parse_args()
    if args.only_async:
        return only_async(args)
    with Cluster() as bare, Cluster(mount=True) as mounted, tempfile.TemporaryDirectory() as disk:
        env = environment(bare)
        places = {"preload": ("/t", env), "mount": (mounted.mount_point, None), "ext4": (disk, None)}

        def each(what, command, prepare=None, unit="s"):
            times = {name: [] for name in places}
            for _ in range(args.rounds):
                for name, (directory, env) in places.items():
                    if prepare:
                        timed(["sh", "-c", prepare.format(directory)], env)
                    times[name].append(timed(["sh", "-c", command.format(directory)], env))
            tell(what, times, "preload", "mount", unit)
            tell(what, times, "preload", "ext4", unit)

        for directory, env_of in places.values():
            timed(["dd", "if=/dev/urandom", f"of={directory}/big", "bs=1M", f"count={args.size_mib}"], env_of)
        each("read bs=4k", "dd if={0}/big of=/dev/null bs=4k")
        each("read bs=1M", "dd if={0}/big of=/dev/null bs=1M")
        each("write bs=4k", f"dd if=/dev/zero of={{0}}/w bs=4k count={args.size_mib * 64} conv=notrunc", "rm -f {0}/w")
        make = "import os, sys\nos.makedirs(sys.argv[1])\n" \
               "for i in range(int(sys.argv[2])): open(os.path.join(sys.argv[1], str(i)), 'w').write('x')"
        for directory, env_of in places.values():
            timed(["python3", "-c", make, f"{directory}/small", str(args.files)], env_of)
        each("find with stat", "find {0}/small -type f -size +0 | wc -l")
        each("cat of all", "cat {0}/small/*")
        times = {"preload": [], "plain": []}
        for _ in range(args.rounds):
            times["plain"].append(starts(args.starts, dict(os.environ)))
            times["preload"].append(starts(args.starts, env))
        tell("start of a program", times, "preload", "plain", "s")


if __name__ == "__main__":
    main()
