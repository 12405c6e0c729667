#!/usr/bin/env python3
"""Kills, stops and starts the processes of a cluster at random while programs write, replace, append, remove and
read files and jobs run. Then checks that all acknowledged data exists, on every mount and for the client.

    faults.py [--binary PATH] [--faults N] [--seed N] [--kinds kill,stop,restart,lose] [--victims server,node,mount,nats]
              [--stage-out] [--backend] [--hooks] [--standby]

The kind `lose` kills the server and removes its directory, as if its host were lost, and recovers the database from the log on the
nodes. The programs pause before it, since the log of the last half second may be lost. With --stage-out the first node is of the burst tier. All files are staged out from it again and again, and each fault happens
during a stage-out. With --backend the last node has its files in an external store, a directory. At the end all files must
be staged out, and the tier must be empty. With --hooks each version is mapped while it is written; at the end each file's
result must be that of its bytes. With --standby the cluster has two servers with a log in three NATS servers (`nats-server` on the path, or
$NATS_SERVER); no program on a mount may get an error because of a server or a NATS server, and the pauses of a program that makes directories are
reported.

The script checks these guarantees (docs/semantics.md): every later read sees the data that close, fsync, rename or a
finished job acknowledged. A file whose writer was interrupted has its old content or the content written so far. A file
that was replaced by rename has its old or its new content. Reads may fail while a process is offline; they may never
return wrong data. Prints one JSON line; the exit status is 1 if acknowledged data reads wrong. Needs root and /dev/fuse.
"""
import argparse
import collections
import ctypes
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

from local_cluster import nats_servers, ports

FILES = 12  # of each writer
BYTES_MAX = 200_000
SETTLE_S = 120
NEWS_S = 5  # for other mounts, including faults
QUIET_S = 3  # until the nodes have the log of the last change
# Allowed errors while a process is offline (docs/semantics.md); any other error is a finding.
OFFLINE = {errno.ECOMM, errno.EHOSTUNREACH, errno.ENOTCONN, errno.ETIMEDOUT, errno.EIO, errno.EINTR, errno.ECONNABORTED}
BUSY = {errno.ETXTBSY}
CLONE_FILES = 0x400
# The directory below a missing mount is empty and read-only.
BARE = {errno.ENOENT, errno.EPERM, errno.EACCES}


class Process:
    """Process of the cluster that can be killed and started again."""

    def __init__(self, name, command, log):
        self.name, self.command, self.log, self.child = name, command, log, None

    def start(self):
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, how=signal.SIGKILL):
        """Ends the process. Returns whether it ended by itself in time."""
        self.child.send_signal(how)
        try:
            self.child.wait(SETTLE_S)
            return True
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            return False


class Cluster:
    def __init__(self, binary, work, nodes, stage_out=False, backend=False, standby=False):
        self.binary, self.work, self.stage_out = binary, work, stage_out
        server = f"unix:{work}/server/server.sock"
        log = lambda name: f"{work}/{name}.log"
        serve = ["server", "run", *(["--stage-out-after", "1s"] if stage_out else [])]
        self.nats, self.standby = [], None
        listen = ["127.0.0.1:0"]
        if standby:
            commands, address = nats_servers(work)
            listen = [f"127.0.0.1:{port}" for port in ports(2)]
            server = ",".join(f"https://{address}" for address in listen)
            serve += ["--log", address]
            self.nats = [Process(f"nats-{n}", command, log(f"nats-{n}")) for n, command in enumerate(commands)]
        common = ["--server", server, "--token-file", f"{work}/server/token"]
        make = lambda name, *args: Process(name, [binary, *args, *common], log(name))
        self.server = make("server", *serve, "--data-dir", f"{work}/server", "--listen", listen[0])
        if standby:
            self.standby = make("standby", *serve, "--data-dir", f"{work}/standby", "--listen", listen[1])
        more = {n: [] for n in range(nodes)}
        if stage_out:
            more[0] += ["--tier", "burst"]
        if backend:
            os.mkdir(f"{work}/store")
            more[nodes - 1] += ["--backend", f"file://{work}/store"]
        self.nodes = [
            make(f"node-{n}", "node", "run", "--id", str(n), "--data-dir", f"{work}/node-{n}", "--cores", "1", "--listen", "127.0.0.1:0", *more[n])
            for n in range(nodes)
        ]
        self.mounts = {
            "a": make("mount-a", "mount", "--path", f"{work}/a"),
            "b": make("mount-b", "mount", "--path", f"{work}/b", "--in-place", "false"),
        }
        self.common = common
        self.bare = set()  # missing mounts

    def start(self):
        for nats in self.nats:
            nats.start()
        self.server.start()
        self.wait("the server", lambda: self.status() is not None)
        if self.standby:
            os.mkdir(f"{self.work}/standby")
            shutil.copy(f"{self.work}/server/cluster.key", f"{self.work}/standby/cluster.key")
            self.standby.start()
        for node in self.nodes:
            node.start()
        self.wait("the nodes", lambda: sum(e["up"] for e in self.status()["nodes"]) == len(self.nodes))
        for name in self.mounts:
            os.mkdir(f"{self.work}/{name}")
            self.mounts[name].start()
        self.wait("the mounts", lambda: all(os.path.ismount(f"{self.work}/{name}") for name in self.mounts))

    def detach(self, name):
        subprocess.run(["umount", "-l", f"{self.work}/{name}"], stderr=subprocess.DEVNULL)

    def stop(self):
        for name, mount in self.mounts.items():
            if mount.child and mount.child.poll() is None:
                mount.kill()
            self.detach(name)
        for process in [*self.nodes, self.server, *filter(None, [self.standby]), *self.nats]:
            if process.child and process.child.poll() is None:
                process.kill()

    def run(self, *args, timeout=90):
        return subprocess.run([self.binary, *args, *self.common], capture_output=True, timeout=timeout)

    def status(self):
        try:
            printed = self.run("--json", "status", timeout=20)
            return json.loads(printed.stdout) if printed.returncode == 0 else None
        except (subprocess.TimeoutExpired, ValueError):
            return None

    def wait(self, what, ready):
        deadline = time.time() + SETTLE_S
        while True:
            try:
                if ready():
                    return
            except (TypeError, OSError, ValueError, subprocess.TimeoutExpired):
                pass
            if time.time() > deadline:
                raise SystemExit(f"faults: {what} did not come within {SETTLE_S} s; logs in {self.work}")
            time.sleep(0.1)


class File:
    """Possible contents of a file: `whole` contents (None: the file may be missing), and prefixes of `begun` contents with
    their minimum lengths."""

    def __init__(self):
        self.whole, self.begun, self.lock = {None}, [], threading.Lock()
        self.before = {None}

    def acknowledged(self, content):
        self.before |= self.whole
        self.whole, self.begun = {content}, []

    def holds(self, content):
        if content in self.whole:
            return True
        return content is not None and any(len(content) >= least and whole.startswith(content) for whole, least in self.begun)


class Load:
    """Programs that work in both mounts."""

    def __init__(self, cluster, seed, writers):
        self.cluster, self.seed, self.over = cluster, seed, threading.Event()
        self.quiet = threading.Event()  # while programs pause
        self.counts, self.errors, self.wrong = collections.Counter(), collections.Counter(), []
        self.files = {}
        self.threads, self.pauses = [], []
        self.staging_out = threading.Event()
        if cluster.stage_out:
            self.spawn(self.stage_out)
        for writer in range(writers):
            for number in range(FILES):
                self.files[f"w{writer}/f{number}"] = File()
        for writer in range(writers):
            mount = "ab"[writer % 2]
            self.spawn(self.write, writer, mount)
        for mount in "ab":
            self.spawn(self.read, mount)
        self.spawn(self.jobs)
        if cluster.standby:
            self.spawn(self.directories)

    def spawn(self, work, *args):
        self.threads.append(threading.Thread(target=self.guard, args=(work, *args), daemon=True))

    def guard(self, work, *args):
        try:
            # A process that another thread starts would have this thread's files open, too: a closed file would not be closed yet, and
            # the start of a node could wait for the close of a file on that node.
            if ctypes.CDLL(None, use_errno=True).unshare(CLONE_FILES) != 0:
                raise OSError(ctypes.get_errno(), "unshare")
            work(*args)
        except Exception as error:  # a bug of this script must not look like success
            self.wrong.append(f"{work.__name__}{args}: {error!r}")
            raise

    def path(self, mount, name):
        return f"{self.cluster.work}/{mount}/{name}"

    def note(self, what, name, content):
        file = self.files[name]
        shown = lambda c: "missing" if c is None else f"{len(c)} bytes {c[:24]!r}"
        allowed = ", ".join(map(shown, file.whole)) + (" or a beginning" if file.begun else "")
        self.wrong.append(f"{what}: {name} holds {shown(content)}, may hold {allowed}")

    def write(self, writer, mount):
        rng = random.Random(f"{self.seed}/{writer}")
        os.makedirs(self.path(mount, f"w{writer}"), exist_ok=True)
        serial = 0
        while not self.over.is_set():
            if self.quiet.is_set():
                time.sleep(0.05)
                continue
            serial += 1
            name = f"w{writer}/f{rng.randrange(FILES)}"
            content = f"{name} {serial} ".encode() * rng.randrange(1, BYTES_MAX // 20)
            work = rng.choice([self.put, self.put, self.save, self.save, self.append, self.remove])
            with self.files[name].lock:
                bare = mount in self.cluster.bare
                try:
                    work(mount, name, content, rng)
                    self.counts[work.__name__] += 1
                except OSError as error:
                    bare = bare or mount in self.cluster.bare
                    if error.errno not in OFFLINE | BUSY | (BARE if bare else set()):
                        self.wrong.append(f"{work.__name__} {name} on {mount}: {error.strerror}")
                    self.errors[f"{work.__name__} {error.strerror}"] += 1
                    time.sleep(0.2)
            time.sleep(rng.random() * 0.02)

    @staticmethod
    def put_at(path, flags, content, rng):
        fd = os.open(path, flags | os.O_WRONLY, 0o644)
        try:
            for at in range(0, len(content), 65536):
                os.write(fd, content[at : at + 65536])
            if rng.random() < 0.5:
                os.fsync(fd)
        finally:
            os.close(fd)

    def put(self, mount, name, content, rng):
        file = self.files[name]
        file.begun = file.begun + [(content, 0)]
        self.put_at(self.path(mount, name), os.O_CREAT | os.O_TRUNC, content, rng)
        file.acknowledged(content)

    def save(self, mount, name, content, rng):
        file, temporary = self.files[name], self.path(mount, name + ".tmp")
        self.put_at(temporary, os.O_CREAT | os.O_TRUNC, content, rng)
        file.whole = file.whole | {content}
        os.rename(temporary, self.path(mount, name))
        file.acknowledged(content)

    def append(self, mount, name, content, rng):
        file = self.files[name]
        if len(file.whole) != 1 or file.begun or None in file.whole:
            return
        before = next(iter(file.whole))
        after = before + content[:1000]
        file.begun = [(after, len(before))]
        self.put_at(self.path(mount, name), os.O_APPEND, content[:1000], rng)
        file.acknowledged(after)

    def remove(self, mount, name, content, rng):
        file = self.files[name]
        if None in file.whole:
            return
        file.whole = file.whole | {None}
        os.unlink(self.path(mount, name))
        file.acknowledged(None)

    def content(self, path):
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def read(self, mount):
        rng = random.Random(f"{self.seed}/read/{mount}")
        while not self.over.is_set():
            name = rng.choice(list(self.files))
            with self.files[name].lock:
                bare = mount in self.cluster.bare
                try:
                    content = self.content(self.path(mount, name))
                except OSError as error:
                    if error.errno not in OFFLINE:
                        self.wrong.append(f"read {name} on {mount}: {error.strerror}")
                    self.errors[f"read {error.strerror}"] += 1
                    time.sleep(0.2)
                    continue
                if bare or mount in self.cluster.bare:
                    continue
                self.counts["read"] += 1
                if not self.files[name].holds(content) and not self.is_on_its_way(mount, name, content):
                    self.note(f"read on mount {mount}", name, content)
            time.sleep(0.005)

    def is_on_its_way(self, mount, name, content):
        """Retries a check: other mounts see changes of names within milliseconds, so an old name is no finding yet."""
        file, deadline = self.files[name], time.time() + NEWS_S
        own = mount == "ab"[int(name[1]) % 2]
        while not own and content in file.before and time.time() < deadline:
            self.counts["read again"] += 1
            time.sleep(0.002)
            try:
                content = self.content(self.path(mount, name))
            except OSError:
                return True
            if file.holds(content):
                return True
        return False

    def directories(self):
        """Makes and removes directories, and notes the pauses."""
        path, last = self.path("b", "pauses"), time.monotonic()
        while not self.over.is_set():
            for change in (os.mkdir, os.rmdir):
                try:
                    change(path)
                except OSError as error:
                    if "b" not in self.cluster.bare:
                        self.wrong.append(f"{change.__name__}: {error.strerror}")
                    time.sleep(0.2)
                self.pauses.append(time.monotonic() - last)
                last += self.pauses[-1]
            time.sleep(0.02)

    def jobs(self):
        script = f"{self.cluster.work}/job.conf"
        names = [name for name in self.files]
        rng = random.Random(f"{self.seed}/jobs")
        serial = 0
        while not self.over.is_set():
            time.sleep(0.3)
            name, serial = rng.choice(names), serial + 1
            file = self.files[name]
            with file.lock:
                if len(file.whole) != 1 or file.begun or None in file.whole:
                    continue
                with open(script, "w") as out:
                    out.write(
                        f'name = "j"; workdir = "/"; tasks = ( {{ name = "t"; kernel = "/bin/cat"; args = ["{name}"]; '
                        f'input = ["{name}"]; output = ["out{serial}"]; stdout = "out{serial}"; }} );'
                    )
                try:
                    printed = self.cluster.run("submit", "--watch", "--no-cache", script, timeout=180)
                except subprocess.TimeoutExpired:
                    self.wrong.append(f"a job that reads {name} did not end within 180 s")
                    continue
                if printed.returncode != 0:
                    self.errors["job"] += 1
                    continue
                try:
                    got = self.cluster.run("cat", f"/out{serial}").stdout
                except subprocess.TimeoutExpired:
                    self.errors["cat"] += 1
                    continue
                self.counts["job"] += 1
                if got and not file.holds(got):
                    self.note("a job", name, got)

    def stage_out(self):
        rng = random.Random(f"{self.seed}/stage-out")
        while not self.over.is_set():
            evict = ["--evict"] if rng.random() < 0.7 else []
            self.staging_out.set()
            try:
                printed = self.cluster.run("stage", "out", "/", "--wait", *evict, timeout=20)
                self.counts["stage-out" if printed.returncode == 0 else "stage-out broken off"] += 1
            except subprocess.TimeoutExpired:
                self.counts["stage-out abandoned"] += 1
            self.staging_out.clear()
            time.sleep(rng.random() * 0.3)

    def check_staged_out(self):
        """Stages out all files of the tier, and evicts them from it."""

        def staged_out():
            self.cluster.run("stage", "out", "/", "--wait", "--evict")
            staged = self.cluster.status()["nodes"][0].get("burst_files") or {}
            return not staged.get("objects")

        self.cluster.wait("the end of the stage-out", staged_out)

    def check_hooks(self):
        """Checks that each existing file has a result, which is that of its bytes, regardless of kills."""

        def settled():
            log = lambda *args: json.loads(self.cluster.run("--json", "rule", "log", "sums", "--limit", "10000", *args).stdout)
            if log("--state", "queued,waiting,running"):
                return False
            self.log = log()
            return True

        self.cluster.wait("the last maps", settled)
        if failed := [one for one in self.log if one["state"] == "failed"]:
            self.wrong.append(f"{len(failed)} versions were not mapped: {failed[0]}")
        seen = collections.Counter(one["object"] for one in self.log)
        if twice := [object for object, count in seen.items() if count > 1]:
            self.wrong.append(f"versions were mapped twice: {twice}")
        found = {name: self.content(self.path("a", f"sums/{name}")) for name in os.listdir(self.path("a", "sums"))}
        done = [str(one["object"]) for one in self.log if one["state"] == "done"]
        if missing := [name for name in done if not found.get(name)]:
            self.wrong.append(f"versions have no result: {missing}")
        sums = {result.split()[0].decode() for result in found.values() if result}
        self.counts["mapped"] = len(done)
        for name in self.files:
            content = self.content(self.path("a", name))
            if content and hashlib.sha256(content).hexdigest() not in sums:
                self.wrong.append(f"{name} has no result, and holds {len(content)} bytes {content[:24]!r}")

    def check(self):
        """Checks all files on both mounts and by the client, after all faults have ended."""
        for name, file in self.files.items():
            for mount in "ab":
                content = self.content(self.path(mount, name))
                if not file.holds(content):
                    self.note(f"at the end on mount {mount}", name, content)
            printed = self.cluster.run("cat", f"/{name}")
            content = printed.stdout if printed.returncode == 0 else None
            if not file.holds(content):
                self.note("at the end for the client", name, content)


def lose(cluster, load):
    """Loses the host of the server, and recovers the server from the nodes."""
    load.quiet.set()
    time.sleep(QUIET_S)
    cluster.server.kill()
    shutil.rmtree(f"{cluster.work}/server")
    load.quiet.clear()
    sources = [f"{cluster.work}/{node.name}" for node in cluster.nodes]
    command = [cluster.binary, "--json", "server", "recover", "--data-dir", f"{cluster.work}/server", *sources]
    recovered = subprocess.run(command, capture_output=True, text=True, timeout=SETTLE_S)
    if recovered.returncode != 0:
        load.wrong.append(f"the recovery failed: {recovered.stdout}{recovered.stderr}")
        return
    cluster.server.start()
    cluster.wait("the server", lambda: cluster.status() is not None)


def fault(cluster, rng, kinds, victims, load):
    """Causes one fault, and ends it."""
    candidates = []
    if "server" in victims:
        candidates += filter(None, [cluster.server, cluster.standby])
    if "nats" in victims:
        candidates += cluster.nats
    if "node" in victims:
        candidates += cluster.nodes
    if "mount" in victims:
        candidates += cluster.mounts.values()
    victim, kind, offline = rng.choice(candidates), rng.choice(kinds), rng.choice([0, 0.1, 1, 4])
    if kind == "lose":
        lose(cluster, load)
        return "lose server"
    if kind == "stop":
        victim.child.send_signal(signal.SIGSTOP)
        time.sleep(offline)
        victim.child.send_signal(signal.SIGCONT)
    else:
        mounts = {name for name, mount in cluster.mounts.items() if mount is victim}
        cluster.bare |= mounts
        if not victim.kill(signal.SIGTERM if kind == "restart" else signal.SIGKILL):
            raise SystemExit(f"faults: {victim.name} did not stop within {SETTLE_S} s; logs in {cluster.work}")
        for name in mounts:
            cluster.detach(name)
        time.sleep(offline)
        victim.start()
        for name in mounts:
            cluster.wait("the mount", lambda: os.path.ismount(f"{cluster.work}/{name}"))
        cluster.bare -= mounts
    return f"{kind} {victim.name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/tidemill")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kinds", default="kill,stop,restart")
    parser.add_argument("--victims", default="server,node,mount")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=2.0, help="maximum seconds between faults")
    parser.add_argument("--stage-out", action="store_true", help="make the first node one of the burst tier, which always stages out")
    parser.add_argument("--backend", action="store_true", help="store the files of the last node in an external directory")
    parser.add_argument("--standby", action="store_true", help="two servers with a log in three NATS servers")
    parser.add_argument("--hooks", action="store_true", help="map each version by a hook")
    parser.add_argument("--work", help="empty work directory; kept after a failure")
    args = parser.parse_args()
    work = args.work or tempfile.mkdtemp(prefix="tidemill-faults-")
    os.chmod(work, 0o755)
    print(f"faults: seed {args.seed}, cluster in {work}", file=sys.stderr)
    rng = random.Random(args.seed)
    cluster = Cluster(os.path.abspath(args.binary), work, args.nodes, args.stage_out, args.backend, args.standby)
    began, done, pauses = time.time(), collections.Counter(), collections.defaultdict(list)
    try:
        cluster.start()
        if args.hooks:
            hook = ("--map", "/usr/bin/sha256sum", "--result", "/sums/{batch}", "--on", "write", "--name", "sums")
            added = cluster.run("rule", "create", "/w*/f*", *hook)
            assert added.returncode == 0, added.stderr
        load = Load(cluster, args.seed, args.writers)
        for thread in load.threads:
            thread.start()
        for number in range(args.faults):
            time.sleep(rng.random() * args.pause)
            if args.stage_out:
                load.staging_out.wait(SETTLE_S)
                time.sleep(rng.random() * 0.3)
            before = len(load.pauses)
            cause = fault(cluster, rng, args.kinds.split(","), args.victims.split(","), load)
            done[cause] += 1
            if args.standby:
                # A second fault before the leader knows its standby, or the NATS servers their third one, may stop the cluster.
                time.sleep(4)
                cluster.wait("the standby", lambda: cluster.status()["replication"]["standbys"])
                pauses[cause.split("-")[0]].append(max(load.pauses[before:], default=0))
            if load.wrong:
                break
            if number % 20 == 19:
                print(f"faults: {number + 1} of {args.faults}, {sum(load.counts.values())} operations", file=sys.stderr)
        load.over.set()
        for thread in load.threads:
            thread.join(SETTLE_S + 90)
            if thread.is_alive():
                load.wrong.append("a program hangs although all processes are up")
        up = lambda: sum(e["up"] for e in cluster.status()["nodes"]) == len(cluster.nodes)
        cluster.wait("all nodes", up)
        cluster.wait("the mounts", lambda: all(os.listdir(f"{work}/{m}") is not None for m in cluster.mounts))
        load.check()
        if args.stage_out:
            load.check_staged_out()
            load.check()
        if args.hooks:
            load.check_hooks()
        # A command whose request is in progress when its server ends fails; programs on mounts may not.
        errors = {what: count for what, count in load.errors.items() if what not in ("job", "cat")}
        if args.standby and not {"node", "mount"} & set(args.victims.split(",")) and errors:
            load.wrong.append(f"programs got errors: {errors}")
    finally:
        cluster.stop()
    result = {
        "seed": args.seed,
        "faults": sum(done.values()),
        "seconds": round(time.time() - began),
        "operations": dict(load.counts),
        "errors": dict(load.errors),
        "by": dict(done),
        "pauses": {cause: [round(pause, 2) for pause in sorted(found)] for cause, found in pauses.items()},
        "wrong": load.wrong[:20],
    }
    print(json.dumps(result))
    if load.wrong:
        print(f"faults: {len(load.wrong)} findings; the cluster is kept in {work}", file=sys.stderr)
        sys.exit(1)
    if not args.work:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
