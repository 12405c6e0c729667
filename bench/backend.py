#!/usr/bin/env python3
"""Staging out to an S3 store and reading from it, against rclone with the same store on this machine.

  make build && bench/backend.py [--rounds 3] [--size-mib 1024] [--small-mib 256] [--binary target/release/tidemill]

`stage-out`: files of 16 MiB (--size-mib of them together) and of 64 KiB (--small-mib) are written into a node of the burst tier. The time ends when `tidemill stage out --wait` returns; then
each file is in the store under its name. The files of 64 KiB are also measured in packs; they have random bytes, so that no chunks are equal. The peer is `rclone copy` of the same files
from ext4, with as many transfers at once (8).
`read`: one file of 256 MiB that is only in the store is read in pieces of 1 MiB through the mount. The peer is `rclone mount` with its defaults, and with `--vfs-read-chunk-streams` if it
has that flag. Both read data that was never read before.
The store is versitygw on a directory. Rounds alternate. Prints JSON lines with medians of speed. Needs root, rclone, and versitygw in PATH or ~/go/bin
(`go install github.com/versity/versitygw/cmd/versitygw@latest`).
"""
import argparse
import os
import shutil
import socket
import subprocess

import local_cluster
from ends import undisturbed
from mount import MIB, Bench, read, timed, write

KEY, SECRET = "bench", "benchbench"


class Store:
    """S3 server on a directory, with a bucket, and the settings of rclone for it."""

    def __init__(self, directory):
        self.directory = os.path.join(directory, "store")
        os.makedirs(os.path.join(self.directory, "bucket"))
        program = shutil.which("versitygw") or os.path.expanduser("~/go/bin/versitygw")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen([program, "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "posix", self.directory],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.env = dict(os.environ, RCLONE_CONFIG="/dev/null")
        # rclone accepts no other list of CAs, so it uses no TLS here.
        self.env.pop("AWS_CA_BUNDLE", None)
        settings = {"TYPE": "s3", "PROVIDER": "Other", "ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "ENDPOINT": self.address, "REGION": "us-east-1"}
        self.env.update({f"RCLONE_CONFIG_STORE_{name}": value for name, value in settings.items()})
        try:
            local_cluster.wait("the store", lambda: self.rclone("lsd", "store:").returncode == 0)
        except BaseException:
            self.end()
            raise

    def rclone(self, *args):
        return subprocess.run(["rclone", *args], env=self.env, capture_output=True, text=True)

    def end(self):
        self.process.terminate()
        self.process.wait()


class Local(local_cluster.Cluster):
    """Node of the burst tier, and a node with its files in the store, by name or in packs."""

    def __init__(self, packing="files", cache=(), **more):
        self.packing, self.cache = packing, cache
        super().__init__(**more)

    def _start_all(self, nodes, cores, mount):
        self.store = Store(self.directory)
        keys = os.path.join(self.directory, "keys")
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(f'access_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n')
        self.backend = ("--backend", f"s3://bucket/cluster?endpoint={self.store.address}&region=us-east-1", "--backend-keys", keys, "--backend-format", self.packing)
        super()._start_all(nodes, cores, mount)

    def _start(self, name, *args):
        more = {"server": ("--stage-out-after", "1h"), "node0": ("--tier", "burst"), "node1": (*self.backend, *self.cache)}
        super()._start(name, *args, *more.get(name, ()))

    @undisturbed()
    def __exit__(self, *_):
        super().__exit__()
        if hasattr(self, "store"):
            self.store.end()


def made(directory, count, size):
    os.makedirs(directory)
    for number in range(count):
        write(f"{directory}/{number}", size, min(size, MIB))


def copied(store, source, to):
    printed = store.rclone("copy", source, to, "--transfers", "8", "--s3-no-check-bucket")
    if printed.returncode:
        raise SystemExit(printed.stderr)


def stage_out(cluster, options, count, size):
    times, ours = {"ours": [], "peer": []}, os.path.join(cluster.mount_point, "d")
    peer = os.path.join(cluster.directory, "peer")
    for turn in range(options.rounds + 1):
        for side, directory in (("ours", ours), ("peer", peer)):
            made(directory, count, size)
            os.sync()
            if side == "ours":
                took = timed(lambda: cluster.tidemill("stage", "out", "/d", "--wait"))
                stored = os.path.join(cluster.store.directory, "bucket", "cluster", "d")
            else:
                took = timed(lambda: copied(cluster.store, directory, "store:bucket/peer"))
                stored = os.path.join(cluster.store.directory, "bucket", "peer")
            if side == "peer" or cluster.packing == "files":
                there = sum(os.path.getsize(os.path.join(stored, name)) == size for name in os.listdir(stored))
            else:
                sizes = [os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(os.path.join(cluster.store.directory, "bucket", "cluster")) for name in names]
                there = min(sum(sizes) // size, count)
            if there != count:
                raise SystemExit(f"{side}: {there} of {count} files are in the store")
            if turn:
                times[side].append(took)
            shutil.rmtree(directory)
            if side == "peer":
                shutil.rmtree(stored)
            elif cluster.packing == "files":
                local_cluster.wait("the removal", lambda: not os.path.exists(stored) or not os.listdir(stored), 300)
    goal = 1.0 if size > MIB else 2.0
    how = "" if cluster.packing == "files" else ", in packs"
    Bench.print(f"stage-out to S3, {count} files of {size >> 10} KiB{how}", "rclone copy", times, count * size, 0, goal)


def reads(cluster, options):
    size, times = 256 * MIB, {"ours": [], "peer": []}
    ours, peer = os.path.join(cluster.mount_point, "r"), os.path.join(cluster.directory, "rclone")
    os.mkdir(peer)
    for turn in range(options.rounds + 1):
        made(ours, 1, size)
        cluster.tidemill("stage", "out", "/r", "--evict", "--wait")
        key = os.path.join(cluster.store.directory, "bucket", "cluster", "r", "0")
        local_cluster.wait("the file in the backend", lambda: os.path.exists(key) and os.path.getsize(key) == size)
        mounted = subprocess.Popen(["rclone", "mount", "store:bucket/cluster", peer, "--read-only", "--dir-cache-time", "0s"], env=cluster.store.env)
        try:
            local_cluster.wait("rclone", lambda: os.path.exists(f"{peer}/r/0"))
            took = {"ours": timed(lambda: read(f"{ours}/0", MIB)), "peer": timed(lambda: read(f"{peer}/r/0", MIB))}
        finally:
            subprocess.run(["fusermount3", "-u", peer])
            mounted.wait()
        for side in times:
            times[side] += [took[side]] if turn else []
        shutil.rmtree(ours)
        local_cluster.wait("the removal", lambda: not os.path.exists(key), 300)
    Bench.print("read a file of 256 MiB that is in S3, pieces of 1 MiB", "rclone mount", times, size, 0, 1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--small-mib", type=int, default=256)
    parser.add_argument("--dir")
    parser.add_argument("--binary", default=local_cluster.BINARY)
    options = parser.parse_args()
    with Local(nodes=2, mount=True, directory=options.dir, binary=options.binary) as cluster:
        stage_out(cluster, options, options.size_mib // 16, 16 * MIB)
        stage_out(cluster, options, options.small_mib * 16, 64 << 10)
    with Local(cache=("--backend-cache", "1MiB"), nodes=2, mount=True, directory=options.dir, binary=options.binary) as cluster:
        reads(cluster, options)
    with Local("dedup | zstd", nodes=2, mount=True, directory=options.dir, binary=options.binary) as cluster:
        stage_out(cluster, options, options.small_mib * 16, 64 << 10)


if __name__ == "__main__":
    main()
