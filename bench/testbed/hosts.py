"""The paper's testbed (AnalyzeThis, Fig. 4) on one machine: hosts in network namespaces, each with its own link.

A host is a network namespace, a UTS namespace with its own name, so that Tidemill takes it for another machine, and a
cgroup that limits its share of the processor. Links are veth pairs into one bridge, shaped by HTB in both directions;
bytes are counted at the host's end. Needs root. Everything is removed at exit.
"""
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from ends import undisturbed  # noqa: E402

CLONE_NEWUTS = 0x04000000
CGROUP_CPU = "/sys/fs/cgroup/cpu"
CGROUP_PERIOD_US = 10_000
SUBNET = "10.77.0"


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


def wait(what, ready, seconds=60):
    """Polls until the condition is true, also if a poll fails."""
    for _ in range(seconds * 10):
        try:
            if ready():
                return
        except RuntimeError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"gave up waiting for {what}")


class Network:
    """Bridge in its own namespace, with its hosts."""

    def __init__(self, tag, rate_mbit):
        self.tag, self.rate_mbit, self.hosts = tag, rate_mbit, []
        self.switch = f"{tag}-switch"
        run("ip", "netns", "add", self.switch)
        self._in_switch("ip", "link", "add", "br0", "type", "bridge")
        self._in_switch("ip", "link", "set", "br0", "up")

    def _in_switch(self, *command):
        run("ip", "netns", "exec", self.switch, *command)

    def add(self, name, cpu, rate_mbit=None):
        """Makes a host whose processes together get `cpu` cores (fractions are possible), with a link of the common rate or its own rate."""
        host = Host(self, name, len(self.hosts) + 1, cpu, rate_mbit or self.rate_mbit)
        self.hosts.append(host)
        host.connect()
        return host

    @undisturbed()
    def close(self):
        for host in self.hosts:
            host.close()
        run("ip", "netns", "del", self.switch, check=False)


class Host:
    def __init__(self, network, name, number, cpu, rate_mbit):
        self.network, self.name, self.number, self.cpu, self.rate_mbit = network, name, number, cpu, rate_mbit
        self.namespace = f"{network.tag}-{name}"
        self.address = f"{SUBNET}.{number}"
        self.cgroup = os.path.join(CGROUP_CPU, self.namespace)
        self.processes = []

    def connect(self):
        network, far = self.network, f"v{self.number}"
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", "eth0", "netns", self.namespace, "type", "veth", "peer", "name", far, "netns",
            network.switch)
        self._inside("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self._inside("ip", "link", "set", "lo", "up")
        self._inside("ip", "link", "set", "eth0", "up")
        network._in_switch("ip", "link", "set", far, "master", "br0", "up")
        self._shape(self._inside, "eth0")
        self._shape(network._in_switch, far)
        os.makedirs(self.cgroup, exist_ok=True)
        self._write_cgroup("cpu.cfs_period_us", CGROUP_PERIOD_US)
        self._write_cgroup("cpu.cfs_quota_us", int(self.cpu * CGROUP_PERIOD_US))

    def _inside(self, *command):
        run("ip", "netns", "exec", self.namespace, *command)

    def _shape(self, where, device):
        rate = f"{self.rate_mbit}mbit"
        where("tc", "qdisc", "add", "dev", device, "root", "handle", "1:", "htb", "default", "1")
        where("tc", "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", rate, "burst",
              "256k", "cburst", "256k")

    def _write_cgroup(self, name, value):
        with open(os.path.join(self.cgroup, name), "w") as file:
            file.write(str(value))

    def _enter(self):
        with open(os.path.join(self.cgroup, "tasks"), "w") as file:
            file.write(str(os.getpid()))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUTS) != 0:
            raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUTS)")
        name = self.namespace.encode()
        if libc.sethostname(name, len(name)) != 0:
            raise OSError(ctypes.get_errno(), "sethostname")

    def popen(self, *command, **options):
        """Starts a process on this host."""
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{self.namespace}", *command],
                                preexec_fn=self._enter, **options)

    def start(self, *command, log):
        """Starts a daemon, which ends with the host."""
        process = self.popen(*command, stdout=open(log, "ab"), stderr=subprocess.STDOUT, start_new_session=True)
        self.processes.append(process)
        return process

    def call(self, *command):
        """Runs a command to its end, and returns its standard output."""
        process = self.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{self.name}: {' '.join(command)} ended with {process.returncode}\n{err}")
        return out

    def _cgroups(self):
        """Returns the control group of the host and those of kernels, which remain after a kill of a node; the innermost first."""
        return [group for group, _, _ in os.walk(self.cgroup, topdown=False)]

    def kill(self):
        """Kills all processes of this host at once, as by kill -9."""
        for _ in range(500):
            left = []
            for group in self._cgroups():
                with open(os.path.join(group, "cgroup.procs")) as file:
                    left += map(int, file)
            if not left:
                return
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for process in self.processes:
                process.poll()
            time.sleep(0.01)
        raise RuntimeError(f"{self.name}: processes {left} stay")

    def counters(self):
        """Returns the bytes that this host has sent and received over its link."""
        out = run("ip", "netns", "exec", self.namespace, "cat", "/sys/class/net/eth0/statistics/tx_bytes",
                  "/sys/class/net/eth0/statistics/rx_bytes").stdout.split()
        return {"sent": int(out[0]), "received": int(out[1])}

    def cpu_seconds(self):
        """Returns the processor time of all processes of this host."""
        path = os.path.join("/sys/fs/cgroup/cpuacct", self.namespace, "cpuacct.usage")
        if not os.path.exists(path):
            path = os.path.join(self.cgroup, "cpuacct.usage")
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return int(file.read()) / 1e9

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.kill()
        run("ip", "netns", "del", self.namespace, check=False)
        for _ in range(50):
            try:
                for group in self._cgroups():
                    os.rmdir(group)
                return
            except OSError:
                time.sleep(0.1)
