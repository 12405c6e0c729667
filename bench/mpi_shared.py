#!/usr/bin/env python3
"""An MPI job whose ranks write one file from two mounts (MPI-IO, N-1), and read it back: a check, with timings.

  apt-get install python3-mpi4py openmpi-bin
  cargo build --release && bench/mpi_shared.py [--rounds 3] [--size-mib 256] [--io ompio,romio321]

There are four ranks; every second rank uses the other mount. Rank w has the pieces 4·i + w, of 47008 bytes and of 1 MiB. Ranks write
with Write_at_all (a strided view, collective) and with Write_at (each piece separately), with each MPI-IO component of Open MPI, and
then call Sync and Close. Then each rank reads the data of the next rank, by plain reads on the other mount, and with Read_at_all.
Prints JSON lines with medians in GB/s. Ends with 1 if a byte is wrong or MPI reports an error. Needs root.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys

from local_cluster import BINARY, Cluster
from mount import MIB
from shared import WRITERS, Shape, pattern

# Debian's mpi4py is for Debian's Python.
PYTHON = "/usr/bin/python3"
WAYS = ("Write_at_all", "Write_at")


def rank(mounts, size, count, way):
    """Runs one rank; the first rank prints the seconds of writing and of reading."""
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    me = world.Get_rank()
    shape, path = Shape(mounts, size, count, True), f"{mounts[me % 2]}/shared"

    def strided(file, owner):
        piece = MPI.BYTE.Create_contiguous(size).Commit()
        file.Set_view(owner * size, piece, piece.Create_resized(0, size * WRITERS).Commit())

    def write():
        file = MPI.File.Open(world, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
        if way == "Write_at_all":
            strided(file, me)
            file.Write_at_all(0, b"".join(pattern(me, number, size) for number in range(count)))
        else:
            for number in range(count):
                file.Write_at(shape.offset(me, number), pattern(me, number, size))
        file.Sync()
        file.Close()

    def read():
        owner = (me + 1) % WRITERS
        file = MPI.File.Open(world, path, MPI.MODE_RDONLY)
        strided(file, owner)
        data = bytearray(size * count)
        file.Read_at_all(0, data)
        file.Close()
        if data != b"".join(pattern(owner, number, size) for number in range(count)):
            print(f"rank {me}: Read_at_all gave other bytes than rank {owner} wrote", file=sys.stderr, flush=True)
            world.Abort(1)

    def timed(action):
        world.Barrier()
        begun = MPI.Wtime()
        action()
        world.Barrier()
        return MPI.Wtime() - begun

    taken = {"write_s": timed(write), "plain_read_s": timed(lambda: shape.read(me)), "read_s": timed(read)}
    if me == 0:
        print(json.dumps(taken), flush=True)


def components():
    reported = subprocess.run(["ompi_info", "--parsable"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall("^mca:io:([^:]+):", reported, re.MULTILINE)) - {"base"})


def mpirun(options, cluster, size, count, way, io):
    mounts = cluster.mount_points
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(WRITERS), "--mca", "io", io,
               PYTHON, os.path.abspath(__file__), "--rank", *mounts, str(size), str(count), way]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                           env={**os.environ, "TMPDIR": cluster.directory})
    try:
        out, error = job.communicate(timeout=options.give_up)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{io}, {way}, {size} bytes: not done after {options.give_up} s")
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{mounts[0]}/shared")
    if job.returncode == 0:
        return json.loads(out)
    print(f"{io}, {way}, {size} bytes: mpirun ended with {job.returncode}\n{error}", file=sys.stderr)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size-mib", type=int, default=256, help="size of all data of a round in MiB")
    parser.add_argument("--pieces", default="47008,1048576", help="sizes of pieces in bytes, multiples of 8")
    parser.add_argument("--io", help="components of Open MPI, such as ompio,romio321 [default: all installed components]")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--give-up", type=float, default=120, help="maximum seconds for a job")
    parser.add_argument("--dir", help="directory on ext4 (default: the temporary directory)")
    parser.add_argument("--quick", action="store_true", help="one round of 16 MiB")
    parser.add_argument("--binary", type=os.path.abspath, default=BINARY)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.size_mib = 1, 16
    with Cluster(nodes=options.nodes, cores=1, mount=2, directory=options.dir, binary=options.binary) as cluster:
        wrong = 0
        for io in options.io.split(",") if options.io else components():
            for size in map(int, options.pieces.split(",")):
                count = max(1, options.size_mib * MIB // size // WRITERS)
                for way in WAYS:
                    runs = [mpirun(options, cluster, size, count, way, io) for _ in range(options.rounds)]
                    failed = runs.count(None)
                    runs = list(filter(None, runs))
                    wrong += failed
                    rates = {} if not runs else {what.replace("_s", "_GBps"): round(size * count * WRITERS / statistics.median(
                        run[what] for run in runs) / 1e9, 3) for what in runs[0]}
                    print(json.dumps({"what": f"{way} {size} bytes, {io}", "right": not failed, "failed": failed, **rates}), flush=True)
    return wrong != 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        first, second, size, count, way = sys.argv[2:]
        sys.exit(rank([first, second], int(size), int(count), way))
    sys.exit(main())
