"""Ends of benchmark scripts: `kill` and `timeout` clean up as Ctrl-C does, and neither cuts a clean-up short."""
import contextlib
import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


@contextlib.contextmanager
def undisturbed():
    """What would end the script waits until this is done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
