"""Cluster on this machine for benchmarks, with server and nodes as processes in a temporary directory; and the loopback as a peer."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time

from ends import undisturbed

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "../target/release")
BINARY = os.environ.get("TIDEMILL", os.path.join(TARGET, "tidemill"))


def wait(what, ready, seconds=60):
    for _ in range(seconds * 20):
        if ready():
            return
        time.sleep(0.05)
    raise SystemExit(f"gave up waiting for {what}")


def ports(count):
    """Returns TCP ports that are free now."""
    bound = [socket.socket() for _ in range(count)]
    for one in bound:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in bound]
    for one in bound:
        one.close()
    return found


def nats_servers(directory):
    """Returns the commands of three NATS servers that store each message on all three, on their disks, and the address of a log there."""
    clients, routes = ports(3), ports(3)
    commands = []
    for n in range(3):
        config = f"{directory}/nats-{n}.conf"
        with open(config, "w") as out:
            out.write(
                f'server_name: n{n}\nlisten: "127.0.0.1:{clients[n]}"\n'
                f'jetstream {{ store_dir: "{directory}/nats-{n}", sync_interval: always }}\n'
                f'cluster {{ name: log, listen: "127.0.0.1:{routes[n]}", '
                f'routes: [{", ".join(f"nats-route://127.0.0.1:{port}" for port in routes)}] }}\n'
            )
        commands.append([os.environ.get("NATS_SERVER", "nats-server"), "-c", config])
    return commands, ",".join(f"nats://127.0.0.1:{port}" for port in clients) + "?replicas=3"


class Cluster:
    """`with Cluster(nodes=1, cores=2, mount=True) as cluster:`; `mount` can also be the number of mounts."""

    def __init__(self, nodes=1, cores=2, mount=False, directory=None, tls="on", binary=BINARY, replicated=False):
        self.replicated = replicated
        self.tls, self.binary = tls, os.path.abspath(binary)
        self.directory = tempfile.mkdtemp(prefix="tidemill-bench-", dir=directory)
        self.endpoint = f"unix:{self.directory}/server/server.sock"
        self.processes = []
        self.mount_points = [os.path.join(self.directory, f"mnt{number or ''}") for number in range(max(1, mount))]
        self.mount_point = self.mount_points[0]
        try:
            self._start_all(nodes, cores, mount)
        except BaseException:
            self.__exit__()
            raise

    def _start_all(self, nodes, cores, mount):
        serve = ["--data-dir", f"{self.directory}/server", "--listen", "127.0.0.1:0"]
        nats = []
        if self.replicated:
            commands, log = nats_servers(self.directory)
            serve += ["--log", log]
            nats = [subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) for command in commands]
        self._start("server", "server", "run", *serve)
        self.processes += nats
        wait("the server", lambda: self.run("status").returncode == 0)
        for number in range(nodes):
            self._start(f"node{number}", "node", "run", "--id", str(number), "--data-dir",
                        f"{self.directory}/node{number}", "--listen", "127.0.0.1:0", "--cores", str(cores))
        wait("the nodes", lambda: sum(e["up"] for e in self.json("status")["nodes"]) == nodes)
        for point in self.mount_points if mount else []:
            os.mkdir(point)
            self._start(os.path.basename(point), "mount", "--path", point)
            wait("the mount", lambda: os.path.exists(os.path.join(point, ".tidemill")))

    def _start(self, name, *args):
        log = open(os.path.join(self.directory, f"{name}.log"), "ab")
        command = [self.binary, "--server", self.endpoint, "--tls", self.tls, *args]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                               start_new_session=True))

    def run(self, *args):
        return subprocess.run([self.binary, "--server", self.endpoint, *args], capture_output=True, text=True)

    def tidemill(self, *args):
        done = self.run(*args)
        if done.returncode != 0:
            raise SystemExit(f"tidemill {' '.join(args)}: {done.stderr}")
        return done.stdout

    def json(self, *args):
        return json.loads(self.tidemill("--json", *args))

    def submit(self, script):
        """Submits the text of a job script, waits for its end, and returns the job."""
        path = os.path.join(self.directory, "job.conf")
        with open(path, "w") as file:
            file.write(script)
        job = self.json("submit", "--no-cache", path)["job"]
        self.run("-q", "job", "watch", str(job))  # waits without polling
        return self.json("job", "show", str(job))

    def __enter__(self):
        return self

    @undisturbed()
    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for point in self.mount_points:
            subprocess.run(["umount", "-l", point], capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


class Loopback:
    """Directory behind the do-nothing loopback: `with Loopback() as peer:` shows the files of `peer.source` at `peer.point`."""

    def __init__(self, *flags, directory=None, binary=BINARY):
        self.directory = tempfile.mkdtemp(prefix="tidemill-bench-peer-", dir=directory)
        self.source, self.point = f"{self.directory}/source", f"{self.directory}/loopback"
        os.mkdir(self.source), os.mkdir(self.point)
        program = os.path.join(os.path.dirname(os.path.abspath(binary)), "tidemill-bench-loopback")
        self.process = subprocess.Popen([program, self.source, self.point, *flags], start_new_session=True)
        try:
            wait("the loopback", lambda: os.path.ismount(self.point))
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    @undisturbed()
    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.point], capture_output=True)
        self.process.terminate()
        self.process.wait(timeout=20)
        shutil.rmtree(self.directory, ignore_errors=True)
