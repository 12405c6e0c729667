#!/usr/bin/env python3
"""Cuts the power of a host at random and checks that all durable data exists (docs/semantics.md, "What survives").

    power.py [--binary PATH] [--cuts N] [--seconds N] [--seed N] [--keep DIRECTORY] [--lying N]

Server and node have their directories on ext4, on a block device that records each write and each flush. Programs write, replace,
truncate, remove and rename files on two mounts, in place and over HTTP. They note the number of records when `fsync` returns. Then
each cut takes a random moment. The writes before the last flush are on the disk; of the later writes all are, none, or a random
selection. (With --lying, the last N flushes have no effect, and the check must fail.) ext4 recovers, and server and node start on
the disk. Each file that was durable before the moment must have its durable content, or the content of a later write. Prints one JSON
line; the exit status is 1 if data is missing. Needs root, /dev/fuse, loop devices and the Python package mfusepy.
"""
import argparse
import bisect
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from local_cluster import wait

DISK = 160 << 20
SECTOR = 4096
ENTRY = struct.Struct("<QQQ")  # kind, offset, bytes
WRITE, FLUSH = 1, 2


def record(directory):
    """Block device as one file, whose bytes are in memory, and whose writes and flushes are recorded in order."""
    import mfusepy

    class Disk(mfusepy.Operations):
        use_ns = True

        def __init__(self):
            self.bytes = bytearray(DISK)
            self.data = open(f"{directory}/data", "wb", buffering=0)
            self.index = open(f"{directory}/index", "wb", buffering=0)
            self.one_at_a_time = threading.Lock()

        def getattr(self, path, fh=None):
            if path == "/":
                return {"st_mode": 0o40755, "st_nlink": 2}
            return {"st_mode": 0o100644, "st_nlink": 1, "st_size": DISK}

        def readdir(self, path, fh):
            return [".", "..", "disk"]

        def read(self, path, size, offset, fh):
            return bytes(self.bytes[offset : offset + size])

        def write(self, path, data, offset, fh):
            with self.one_at_a_time:
                self.data.write(data)
                self.index.write(ENTRY.pack(WRITE, offset, len(data)))
                self.bytes[offset : offset + len(data)] = data
            return len(data)

        def fsync(self, path, datasync, fh):
            with self.one_at_a_time:
                self.index.write(ENTRY.pack(FLUSH, 0, 0))
            return 0

        def truncate(self, path, length, fh=None):
            return 0

        def flush(self, path, fh):
            return 0

    try:
        mfusepy.FUSE(Disk(), f"{directory}/device", foreground=True, nothreads=True, direct_io=True, allow_other=True)
    except RuntimeError:
        pass  # The file system is unmounted.


def sh(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def let_go(loop, mounted):
    """Unmounts and detaches a device. A file system in use would write to the image of the next cut."""
    wait("the unmount", lambda: subprocess.run(["umount", mounted], capture_output=True).returncode == 0)
    sh("losetup", "-d", loop)
    wait("the end of the device", lambda: not os.path.exists(f"/sys/block/{os.path.basename(loop)}/loop/backing_file"))


class Cluster:
    """Server, node and mounts, with their directories on the disk."""

    def __init__(self, binary, work):
        self.binary, self.work, self.disk, self.children = binary, work, f"{work}/disk", []
        self.common = ["--server", f"unix:{self.disk}/server/server.sock", "--token-file", f"{self.disk}/server/token"]

    def spawn(self, name, *words):
        with open(f"{self.work}/{name}.log", "ab") as log:
            self.children.append(subprocess.Popen([self.binary, *words, *self.common], stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def start(self, mounts):
        self.spawn("server", "server", "run", "--data-dir", f"{self.disk}/server", "--listen", "127.0.0.1:0")
        wait("the server", lambda: os.path.exists(f"{self.disk}/server/server.sock") and self.status() is not None)
        self.spawn("node", "node", "run", "--id", "0", "--data-dir", f"{self.disk}/node", "--cores", "1", "--listen", "127.0.0.1:0")
        wait("the node", lambda: any(one["up"] for one in self.status()["nodes"]))
        for name, flags in mounts.items():
            os.makedirs(f"{self.work}/{name}", exist_ok=True)
            self.spawn(f"mount-{name}", "mount", "--path", f"{self.work}/{name}", *flags)
            wait("the mount", lambda: os.path.ismount(f"{self.work}/{name}"))

    def status(self):
        printed = subprocess.run([self.binary, "--json", "status", *self.common], capture_output=True, timeout=30)
        return json.loads(printed.stdout) if printed.returncode == 0 else None

    def kill(self, mounts):
        for child in self.children:
            child.send_signal(signal.SIGKILL)
        for child in self.children:
            child.wait()
        self.children = []
        for name in mounts:
            subprocess.run(["umount", "-l", f"{self.work}/{name}"], stderr=subprocess.DEVNULL)
        # The socket may be that of the previous server.
        try:
            os.unlink(f"{self.disk}/server/server.sock")
        except OSError:
            pass


class File:
    """Changes of a name: the begin of each change and its durable moment, as numbers of records, and the content of the file.
    Bytes of an unfinished write in place may exist in part."""

    def __init__(self):
        self.changes = []  # [began, durable or None, content or None, in place]

    def allows(self, cut, content):
        durable = [n for n, (_, when, _, _) in enumerate(self.changes) if when is not None and when <= cut]
        last = durable[-1] if durable else None
        if last is None and content is None:
            return True
        if last is not None and content == self.changes[last][2]:
            return True
        for began, _, later, way in self.changes[0 if last is None else last + 1 :]:
            if began > cut:
                break
            if content == later:
                return True
            # The file was truncated and written, and is sealed without its writer. ext4 has zeros for blocks that were not written.
            if way.startswith("in place") and content is not None and len(content) <= len(later):
                if all(byte in (0, there) for byte, there in zip(content, later)):
                    return True
        return False


    def around(self, cut):
        """Returns the last durable change before a cut and the next changes: records of begin and `fsync`, content, way."""
        durable = [n for n, (_, when, _, _) in enumerate(self.changes) if when is not None and when <= cut]
        first = durable[-1] if durable else 0
        return [(b, d, c and (len(c), c[:16]), way) for b, d, c, way in self.changes[first : first + 3] if b <= cut or d]


class Load:
    def __init__(self, cluster, recorded, seed):
        self.cluster, self.recorded, self.over, self.errors = cluster, recorded, threading.Event(), []
        self.files, self.done = {}, 0
        self.threads = [threading.Thread(target=self.guard, args=(n, "ab"[n % 2], random.Random(f"{seed}/{n}")), daemon=True) for n in range(4)]

    def guard(self, *args):
        try:
            self.write(*args)
        except Exception as error:
            self.errors.append(repr(error))
            raise

    def write(self, number, mount, rng):
        top = f"{self.cluster.work}/{mount}"
        directory, serial = f"w{number}", 0
        os.makedirs(f"{top}/{directory}", exist_ok=True)
        self.sync(f"{top}/{directory}")
        self.sync(top)
        while not self.over.is_set():
            serial += 1
            name = f"{directory}/f{rng.randrange(24)}"
            content = f"{name} {serial} ".encode() * rng.randrange(1, 2500)
            file = self.files.setdefault(name, File())
            change = [self.recorded(), None, content, ""]
            work = rng.choice(["replace", "replace", "replace", "in place", "remove"])
            if work == "in place":
                change[3] = "in place"
                file.changes.append(change)
                change[3] += self.put(f"{top}/{name}", content, rng)
                self.sync(f"{top}/{directory}")
            elif work == "replace":
                file.changes.append(change)
                change[3] = "replace" + self.put(f"{top}/{name}.tmp", content, rng)
                os.rename(f"{top}/{name}.tmp", f"{top}/{name}")
                self.sync(f"{top}/{directory}")
            elif os.path.exists(f"{top}/{name}"):
                change[2] = None
                file.changes.append(change)
                os.unlink(f"{top}/{name}")
                self.sync(f"{top}/{directory}")
            change[1] = self.recorded()
            self.done += 1

    @staticmethod
    def sync(path):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def put(self, path, content, rng):
        fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        for at in range(0, len(content), 16384):
            os.write(fd, content[at : at + 16384])
        later = rng.random() < 0.3
        if not later:
            os.fsync(fd)
        os.close(fd)
        # `fsync` of a reader, as by `sync FILE`.
        if later:
            self.sync(path)
        return ", synced by a reader" if later else ""


class Disk:
    """The records as a disk at any moment; callers ask for moments in order."""

    def __init__(self, directory):
        index = open(f"{directory}/index", "rb").read()
        self.entries = [ENTRY.unpack_from(index, at) for at in range(0, len(index) - len(index) % ENTRY.size, ENTRY.size)]
        self.flushes = [n for n, (kind, _, _) in enumerate(self.entries) if kind == FLUSH]
        self.data = open(f"{directory}/data", "rb")
        self.places, place = [], 0
        for _, _, size in self.entries:
            self.places.append(place)
            place += size
        self.base, self.applied = bytearray(DISK), 0

    def write(self, into, number, keep=lambda: True):
        kind, offset, size = self.entries[number]
        if kind != WRITE:
            return
        self.data.seek(self.places[number])
        data = self.data.read(size)
        for at in range(0, size, SECTOR):
            if keep():
                part = data[at : at + SECTOR]
                into[offset + at : offset + at + len(part)] = part

    def cut(self, cut, rng, path, lying, floor):
        flush = bisect.bisect_left(self.flushes, cut) - 1 - lying
        durable = max(self.flushes[max(flush, 0)], floor)
        while self.applied < durable:
            self.write(self.base, self.applied)
            self.applied += 1
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), DISK) as image:
            image[:] = self.base
            keep = rng.choice([lambda: True, lambda: False, lambda: rng.random() < 0.5])
            for number in range(durable, cut):
                self.write(image, number, keep)


def content(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/tidemill")
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="directory for the disks of failed cuts")
    parser.add_argument("--lying", type=int, default=0, help="number of last flushes without effect")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record:
        return record(args.record)
    rng, began = random.Random(args.seed), time.time()
    work = tempfile.mkdtemp(prefix="tidemill-power-", dir="/dev/shm")
    for name in ("device", "disk"):
        os.mkdir(f"{work}/{name}")
    recorder = subprocess.Popen([sys.executable, __file__, "--record", work], stdin=subprocess.DEVNULL)
    cluster, loop, wrong, checked = Cluster(os.path.abspath(args.binary), work), None, [], 0
    both = {"a": [], "b": ["--in-place", "false"]}
    try:
        wait("the device", lambda: os.path.exists(f"{work}/device/disk"))
        loop = sh("losetup", "-f", "--show", f"{work}/device/disk")
        sh("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", loop)
        sh("mount", loop, f"{work}/disk")
        recorded = lambda: os.stat(f"{work}/index").st_size // ENTRY.size
        cluster.start(both)
        load = Load(cluster, recorded, args.seed)
        first = recorded()
        for thread in load.threads:
            thread.start()
        time.sleep(args.seconds)
        load.over.set()
        for thread in load.threads:
            thread.join()
        last = recorded()
        cluster.kill(both)
        let_go(loop, f"{work}/disk")
        loop = None
        sh("umount", f"{work}/device")
        recorder.wait()
        disk, image = Disk(work), f"{work}/cut.img"
        with open(image, "wb") as file:
            file.truncate(DISK)
        cuts = sorted(rng.randrange(first, last + 1) for _ in range(args.cuts))
        for cut in cuts:
            disk.cut(cut, rng, image, args.lying, first)
            if args.keep:
                shutil.copy(image, f"{args.keep}/cut.img")
            loop = sh("losetup", "-f", "--show", image)
            sh("mount", loop, f"{work}/disk")
            try:
                cluster.kill(())
                cluster.start({"a": []})
                for name, file in load.files.items():
                    found = content(f"{work}/a/{name}")
                    checked += 1
                    if not file.allows(cut, found):
                        shown = "missing" if found is None else f"{len(found)} bytes {found[:24]!r}"
                        wrong.append(f"cut {cut}: {name} is {shown}; {file.around(cut)}")
            except SystemExit as error:
                wrong.append(f"cut {cut}: {error}")
            except OSError as error:
                wrong.append(f"cut {cut}: {error}")
            cluster.kill({"a": []})
            let_go(loop, f"{work}/disk")
            loop = None
            if wrong and args.keep:
                os.rename(f"{args.keep}/cut.img", f"{args.keep}/{cut}.img")
                break
        wrong += load.errors
        print(json.dumps({
            "cuts": len(cuts), "changes": load.done, "checked": checked, "records": last - first, "flushes": len(disk.flushes),
            "wrong": len(wrong), "seed": args.seed, "seconds": round(time.time() - began),
        }))
        for line in wrong[:20]:
            print(line, file=sys.stderr)
    finally:
        cluster.kill(both)
        subprocess.run(["umount", "-l", f"{work}/disk"], stderr=subprocess.DEVNULL)
        if loop:
            subprocess.run(["losetup", "-d", loop], stderr=subprocess.DEVNULL)
        subprocess.run(["umount", "-l", f"{work}/device"], stderr=subprocess.DEVNULL)
        recorder.kill()
        recorder.wait()
        if not (wrong and args.keep):
            # A mount protects its mountpoint against writes while it is offline.
            subprocess.run(["chattr", "-R", "-i", work], stderr=subprocess.DEVNULL)
            shutil.rmtree(work, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
