"""Labels for Python: the interface of include/tidemill_label.h, by ctypes.

    from tidemill_label import App
    app = App("simulation")
    written = app.write("tidemill:/run/step-1", 0, data)
    ...                       # the program continues to compute
    written.wait()            # afterwards the bytes are in the cluster, visible for all

TIDEMILL_LABEL_LIBRARY names the library; without it the system searches for libtidemill_label.so.
"""

import ctypes
import os

DURABLE, TRUNCATE, NOWAIT, IF_DONE, IF_FAILED = 1, 2, 4, 8, 16
LOW_LATENCY, BANDWIDTH, ENERGY = 1, 2, 3
_ADDRESS_BYTES = 4160

_name = os.environ.get("TIDEMILL_LABEL_LIBRARY", "libtidemill_label.so")
_library = ctypes.CDLL(_name, use_errno=True)
_handle, _text, _bytes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
_u64, _size, _flags = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint


def _function(name, result, *arguments):
    function = getattr(_library, name)
    function.restype, function.argtypes = result, arguments
    return function


_register = _function("tidemill_app_register_for", _handle, _text, _text, _u64, _flags)
_close = _function("tidemill_app_close", None, _handle)
_flush = _function("tidemill_app_flush", ctypes.c_int, _handle)
_write = _function("tidemill_label_write", _handle, _handle, _text, _u64, _bytes, _size, _flags, _handle)
_put = _function("tidemill_label_put", _handle, _handle, _text, _bytes, _size, _flags)
_get = _function("tidemill_app_get", ctypes.c_int64, _handle, _text, ctypes.c_void_p, _size, _u64)
_append = _function("tidemill_label_append", _handle, _handle, _text, _bytes, _size, _flags, _handle)
_read = _function("tidemill_label_read", _handle, _handle, _text, _u64, _u64, _flags, _handle)
_delete = _function("tidemill_label_delete", _handle, _handle, _text, _flags, _handle)
_rename = _function("tidemill_label_rename", _handle, _handle, _text, _text, _flags, _handle)
_analyse = _function("tidemill_label_analyse", _handle, _handle, ctypes.c_void_p, _size, _flags, _handle)
_job = _function("tidemill_label_job", _handle, _handle, _text, _text, _size, _flags, _handle)
_await = _function("tidemill_label_await", _handle, _handle, _text, _text, _flags, _handle)
_subscribe = _function("tidemill_subscribe", _handle, _handle, _text, _text)
_next = _function("tidemill_subscription_next", ctypes.c_int64, _handle, ctypes.c_void_p, _size, ctypes.c_int64)
_cursor = _function("tidemill_subscription_cursor", ctypes.c_int64, _handle, ctypes.c_void_p, _size)
_unsubscribe = _function("tidemill_subscription_close", None, _handle)
_test = _function("tidemill_label_test", ctypes.c_int, _handle)
_cancel = _function("tidemill_label_cancel", ctypes.c_int, _handle)
_wait = _function("tidemill_label_wait", ctypes.c_int64, _handle, ctypes.c_void_p, _size)
_callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
_on_done = _function("tidemill_label_on_done", ctypes.c_int, _handle, _callback, ctypes.c_void_p)
_forget = _function("tidemill_label_forget", None, _handle)
_error = _function("tidemill_label_error", _text)


class _Analysis(ctypes.Structure):
    _list = ctypes.POINTER(_text)
    _fields_ = [("kernel", _text), ("args", _list), ("inputs", _list), ("outputs", _list),
                ("stdin", _text), ("stdout", _text), ("policy", _text)]


# Callbacks that may still be called, and the ids of those that were called.
_called, _ended = {}, set()


def _texts(texts):
    return (_text * (len(texts) + 1))(*[text.encode() for text in texts], None)


def _maybe(text):
    return None if text is None else text.encode()


def _failed():
    return OSError(ctypes.get_errno(), _error().decode())


class Label:
    """Published label. If the object is deleted, the label is carried out all the same, without a report."""

    def __init__(self, app, handle, size=0):
        if not handle:
            raise _failed()
        self.app, self.handle, self.size = app, handle, size

    def test(self):
        """Returns whether the label is stored, has failed, or was cancelled."""
        return self.handle is None or bool(_test(self.handle))

    def cancel(self):
        """Cancels the label; returns whether it was cancelled."""
        return self.handle is not None and bool(_cancel(self.handle))

    def wait(self):
        """Waits until the label is stored; returns the bytes that were read."""
        handle, self.handle = self.handle, None
        buffer = ctypes.create_string_buffer(self.size) if self.size else None
        read = _wait(handle, buffer, self.size)
        if read < 0:
            raise _failed()
        return buffer.raw[:read] if buffer else b""

    def on_done(self, callback):
        """Calls `callback` in another thread, with the bytes that were read or with an OSError, when the label has ended."""
        handle, self.handle = self.handle, None

        def called(_, data, size, error):
            # The callback may be freed only after it has returned: a later call of on_done() does that.
            _ended.add(id(there))
            callback(ctypes.string_at(data, size) if size >= 0 else OSError(error, _error().decode()))

        while _ended:
            _called.pop(_ended.pop(), None)
        there = _callback(called)
        _called[id(there)] = there
        if _on_done(handle, there, None) < 0:
            raise _failed()

    def __del__(self):
        if getattr(self, "handle", None):
            _forget(self.handle)


class Subscription:
    """Addresses of new files in order: `for path in app.subscribe("tidemill:/run/step-*")`. Keep `cursor` to continue later without gaps."""

    def __init__(self, app, pattern, since=None):
        self.handle = _subscribe(app.app, pattern.encode(), _maybe(since))
        if not self.handle:
            raise _failed()

    def next(self, seconds=None):
        """Returns the next address. Raises TimeoutError, or an OSError with EOVERFLOW if the cluster has dropped the oldest events."""
        buffer = ctypes.create_string_buffer(_ADDRESS_BYTES)
        if _next(self.handle, buffer, _ADDRESS_BYTES, -1 if seconds is None else int(seconds * 1000)) < 0:
            raise _failed()
        return buffer.value.decode()

    @property
    def cursor(self):
        buffer = ctypes.create_string_buffer(_ADDRESS_BYTES)
        if _cursor(self.handle, buffer, _ADDRESS_BYTES) < 0:
            raise _failed()
        return buffer.value.decode()

    def __iter__(self):
        while True:
            yield self.next()

    def __del__(self):
        if getattr(self, "handle", None):
            _unsubscribe(self.handle)


class App:
    """Registered application."""

    def __init__(self, name, mount=None, capacity=0, intent=0):
        self.app = _register(name.encode(), mount and os.fsencode(mount), capacity, intent)
        if not self.app:
            raise _failed()

    def write(self, to, offset, data, flags=0, after=None):
        return Label(self, _write(self.app, to.encode(), offset, data, len(data), flags, after and after.handle))

    def put(self, to, data, flags=0):
        """Creates a file with these bytes; get() of this user's programs on this host returns them at once."""
        return Label(self, _put(self.app, to.encode(), data, len(data), flags))

    def get(self, path, seconds=0):
        """Reads a whole file, put or stored; waits for the file for up to `seconds`."""
        size = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            got = _get(self.app, path.encode(), buffer, size, int(seconds * 1000))
            if got < 0:
                raise _failed()
            if got <= size:
                return buffer.raw[:got]
            size = got

    def append(self, to, data, flags=0, after=None):
        return Label(self, _append(self.app, to.encode(), data, len(data), flags, after and after.handle))

    def read(self, path, offset, size, flags=0, after=None):
        return Label(self, _read(self.app, path.encode(), offset, size, flags, after and after.handle), size)

    def delete(self, path, flags=0, after=None):
        return Label(self, _delete(self.app, path.encode(), flags, after and after.handle))

    def rename(self, path, to, flags=0, after=None):
        return Label(self, _rename(self.app, path.encode(), to.encode(), flags, after and after.handle))

    def analyse(self, kernel, args=(), inputs=(), outputs=(), stdin=None, stdout=None, policy=None, result=0, flags=0,
                after=None):
        """Runs a kernel on files; wait() returns the first `result` bytes of the first output."""
        lists = [_texts(texts) for texts in (args, inputs, outputs)]
        analysis = _Analysis(kernel.encode(), *lists, *map(_maybe, (stdin, stdout, policy)))
        reference = ctypes.byref(analysis)
        return Label(self, _analyse(self.app, reference, result, flags, after and after.handle), result)

    def job(self, script, result=None, size=0, flags=0, after=None):
        """Runs the job of a script; wait() returns the first `size` bytes of the file `result`."""
        return Label(self, _job(self.app, script.encode(), _maybe(result), size, flags, after and after.handle), size)

    def file_event(self, pattern, since=None, flags=0, after=None):
        """Waits for a new file of any user from now on, or since a cursor; wait() returns its address."""
        handle = _await(self.app, pattern.encode(), _maybe(since), flags, after and after.handle)
        return Label(self, handle, _ADDRESS_BYTES)

    def subscribe(self, pattern, since=None):
        """Subscribes to all new files in order, from now on or from a cursor."""
        return Subscription(self, pattern, since)

    def flush(self):
        """Waits until all published labels are stored."""
        if _flush(self.app) < 0:
            raise _failed()

    def __del__(self):
        if getattr(self, "app", None):
            _close(self.app)
