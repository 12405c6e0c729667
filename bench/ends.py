"""Clean ends of benchmark scripts: `kill` and `timeout` clean up as Ctrl-C does, and neither interrupts a clean-up."""
import contextlib
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextlib.contextmanager
def undisturbed():
    """Delays signals that end the script until this block is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
