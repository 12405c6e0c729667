"""Runs kernels in one process of `examples/kernel_write.rs`, for the scripts beside this."""
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Ours:
    """The kernels, in one process."""

    def __init__(self):
        program = f"{ROOT}/target/release/examples/kernel_write"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, output, inputs, *words):
        """Seconds by the clock and of the processor. Inputs are a file, or several; no output is one that takes all."""
        inputs = inputs if isinstance(inputs, str) else "|".join(inputs)
        self.process.stdin.write("\t".join([output, inputs, *words]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{words} failed")
        return [float(word) for word in answer.split()]
