"""An array on this machine for benchmarks: server and elements as processes, in a temporary folder."""
import json
import os
import shutil
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "../target/release")
BINARY = os.environ.get("TIDEMILL", os.path.join(TARGET, "tidemill"))
LOOPBACK = os.path.join(TARGET, "tidemill-bench-loopback")


def wait(what, ready, seconds=60):
    for _ in range(seconds * 20):
        if ready():
            return
        time.sleep(0.05)
    raise SystemExit(f"gave up waiting for {what}")


class Array:
    """`with Array(elements=1, cores=2, mount=True) as array:`"""

    def __init__(self, elements=1, cores=2, mount=False, folder=None, tls="on", binary=BINARY):
        self.tls, self.binary = tls, binary
        self.folder = tempfile.mkdtemp(prefix="tidemill-bench-", dir=folder)
        self.endpoint = f"unix:{self.folder}/server/server.sock"
        self.processes = []
        self.mount_point = os.path.join(self.folder, "mnt")
        self._start("server", "server", "--folder", f"{self.folder}/server", "--listen", "127.0.0.1:0")
        wait("the server", lambda: self.run("status").returncode == 0)
        for number in range(elements):
            self._start(f"element{number}", "element", "--id", str(number), "--folder",
                        f"{self.folder}/element{number}", "--listen", "127.0.0.1:0", "--cores", str(cores))
        wait("the elements", lambda: sum(e["up"] for e in self.json("status")["elements"]) == elements)
        if mount:
            os.mkdir(self.mount_point)
            self._start("mount", "mount", "--path", self.mount_point)
            wait("the mount", lambda: os.path.exists(os.path.join(self.mount_point, ".tidemill")))

    def _start(self, name, *args):
        log = open(os.path.join(self.folder, f"{name}.log"), "ab")
        command = [self.binary, "--server", self.endpoint, "--tls", self.tls, *args]
        self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))

    def run(self, *args):
        return subprocess.run([self.binary, "--server", self.endpoint, *args], capture_output=True, text=True)

    def json(self, *args):
        done = self.run("--json", *args)
        if done.returncode != 0:
            raise SystemExit(f"tidemill {' '.join(args)}: {done.stderr}")
        return json.loads(done.stdout)

    def submit(self, script):
        """Submits a job script's text and waits for its end; gives the job."""
        path = os.path.join(self.folder, "job.conf")
        with open(path, "w") as file:
            file.write(script)
        job = self.json("submit", "--no-cache", path)["job"]
        self.run("-q", "watch", str(job))  # waits without asking again and again
        return self.json("jobs", str(job))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        subprocess.run(["umount", "-l", self.mount_point], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
