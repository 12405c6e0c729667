"""What the scripts beside this share: kernels in one process of an example program, times, and what is said of them."""
import os
import resource
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Process:
    """An example program that answers a line of words with a line of words, tabs between them."""

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
    """The kernels, file to file."""

    def __init__(self):
        super().__init__("kernel_write")

    def run(self, output, inputs, *words):
        """Seconds by the clock and of the processor. Inputs are a file, or several; no output is one that takes all."""
        inputs = inputs if isinstance(inputs, str) else "|".join(inputs)
        return [float(word) for word in " ".join(self.ask(output, inputs, *words)).split()]


class Loops(Process):
    """The kernels' inner loops, and those peers that are no Python packages, on memory."""

    def __init__(self):
        super().__init__("kernel_memory")
        self.found = None

    def run(self, *words):
        """Seconds by the clock and of the processor."""
        seconds, used, self.found = self.ask(*words)
        return [float(seconds), float(used)]


def processor():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def timed(work, *args):
    """Seconds by the clock and of the processor."""
    start = time.perf_counter(), processor()
    work(*args)
    return [time.perf_counter() - start[0], processor() - start[1]]


def result(mine, theirs):
    """Medians, and ratios by the clock and by processor time, which says more on a busy machine."""
    median = lambda values: round(statistics.median(values), 4)
    ratio = lambda which: round(statistics.median(t[which] / max(m[which], 1e-6) for m, t in zip(mine, theirs)), 2)
    return {"ours_s": median(m[0] for m in mine), "peer_s": median(t[0] for t in theirs), "ratio": ratio(0),
            "ours_cpu_s": median(m[1] for m in mine), "peer_cpu_s": median(t[1] for t in theirs), "cpu_ratio": ratio(1)}
