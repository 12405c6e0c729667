"""Common parts of these scripts: kernels in a process of an example program, times and output."""
import os
import resource
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Process:
    """Example program that answers each line of words with a line of words, separated by tabs."""

    def __init__(self, example):
        program = f"{ROOT}/target/release/examples/{example}"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{words} failed")
        return answer.rstrip("\n").split("\t")


class Ours(Process):
    """Kernels, file to file."""

    def __init__(self):
        super().__init__("kernel_write")

    def run(self, output, inputs, *words):
        """Returns wall-clock and processor seconds. The input is a file or several; without an output, results are discarded."""
        inputs = inputs if isinstance(inputs, str) else "|".join(inputs)
        return [float(word) for word in " ".join(self.ask(output, inputs, *words)).split()]


class Loops(Process):
    """Inner loops of kernels, and peers that are no Python packages, on memory."""

    def __init__(self):
        super().__init__("kernel_memory")
        self.found = None

    def run(self, *words):
        """Returns wall-clock and processor seconds."""
        seconds, used, self.found = self.ask(*words)
        return [float(seconds), float(used)]


def processor():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def timed(work, *args):
    """Returns wall-clock and processor seconds."""
    start = time.perf_counter(), processor()
    work(*args)
    return [time.perf_counter() - start[0], processor() - start[1]]


def result(mine, theirs):
    """Returns medians, and ratios of wall-clock and of processor time; the latter is more reliable on a busy machine."""
    median = lambda values: round(statistics.median(values), 4)
    ratio = lambda which: round(statistics.median(t[which] / max(m[which], 1e-6) for m, t in zip(mine, theirs)), 2)
    return {"ours_s": median(m[0] for m in mine), "peer_s": median(t[0] for t in theirs), "ratio": ratio(0),
            "ours_cpu_s": median(m[1] for m in mine), "peer_cpu_s": median(t[1] for t in theirs), "cpu_ratio": ratio(1)}
