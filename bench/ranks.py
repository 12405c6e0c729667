"""Ranks that write, or read the data of other ranks, as IOR does in its patterns; Debian has no package of IOR. `abb.py` runs this on each host.

  ranks.py write|check DIRECTORY FIRST COUNT ALL JSON       ranks FIRST to FIRST + COUNT of ALL, as processes of this host

JSON: `files` (number of files of all ranks), `pieces` of 1 MiB each, `strided` (ranks take turns in a file; else each has its part of the file), `sync` (fsync before close).
The program prints `ready` and waits for a line. It then opens all files, prints `opened` and waits for another line. (Opening is collective, as in MPI-IO: no rank has closed a file
that others still open.) It ends when all ranks have closed their files. Values are random doubles below 1000, seeded by the rank; all pieces of a rank are the same.
"""
import array
import json
import os
import random
import sys

PIECE = 1 << 20


def values(rank):
    chance = random.Random(rank)
    return array.array("d", (chance.random() * 1000 for _ in range(PIECE // 8)))


def name(rank, everybody, shape):
    return f"{rank * shape['files'] // everybody}.f64"


def ranks_of(number, everybody, shape):
    """Returns the ranks that write a file."""
    return [rank for rank in range(everybody) if name(rank, everybody, shape) == f"{number}.f64"]


def offsets(rank, everybody, shape):
    together = ranks_of(rank * shape["files"] // everybody, everybody, shape)
    place = together.index(rank)
    for piece in range(shape["pieces"]):
        yield PIECE * (piece * len(together) + place if shape["strided"] else place * shape["pieces"] + piece)


def write(path, fd, places, piece):
    for at in places:
        if os.pwrite(fd, piece, at) != PIECE:
            sys.exit(f"{path}: a short write at {at}")


def check(path, fd, places, piece):
    for at in places:
        if os.pread(fd, PIECE, at) != piece:
            sys.exit(f"{path}: the bytes that were written at {at} are missing")


def one(rank, gates, everybody, shape, directory, action):
    """Runs a rank, between the gates."""
    piece, places, path = values(rank).tobytes(), list(offsets(rank, everybody, shape)), os.path.join(directory, name(rank, everybody, shape))
    os.write(gates[3][1], b".")
    os.read(gates[0][0], 1)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT if action is write else os.O_RDONLY, 0o644)
    os.write(gates[1][1], b".")
    os.read(gates[2][0], 1)
    action(path, fd, places, piece)
    if action is write and shape["sync"]:
        os.fsync(fd)
    os.close(fd)


def main():
    action = {"write": write, "check": check}[sys.argv[1]]
    directory, first, count, everybody, shape = sys.argv[2], *map(int, sys.argv[3:6]), json.loads(sys.argv[6])
    # Gates: opening may begin; all files are open; writing may begin; values are made.
    gates, children = [os.pipe() for _ in range(4)], []
    for rank in range(first, first + count):
        # Readers take the data of another host.
        rank = (rank + count) % everybody if action is check else rank
        child = os.fork()
        if child == 0:
            os.close(gates[0][1]), os.close(gates[2][1])
            one(rank, gates, everybody, shape, directory, action)
            os._exit(0)
        children.append(child)
    for gate, state in ((3, "ready"), (1, "opened")):
        os.close(gates[gate][1])
        if any(os.read(gates[gate][0], 1) != b"." for _ in children):
            sys.exit("a rank has ended early")
        print(state, flush=True)
        sys.stdin.readline()
        os.close(gates[0 if state == "ready" else 2][1])
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))


if __name__ == "__main__":
    main()
