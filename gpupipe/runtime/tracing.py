"""Records a timeline of this process, for `gpupipe profile --trace`.

Code that may be traced calls `span()`, and `begin()` and `end()` for a batch in flight. Without a
recorder they do nothing. A recorder collects events of all threads, and writes them in Chrome's
trace format, which Perfetto and chrome://tracing show. Source of the format: "Trace Event Format",
docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

OpenRange = Callable[[str], AbstractContextManager[object]]
"""Opens a named range in another profiler, as torch.cuda.nvtx.range does."""


class SpanRecorder:
    """Collects the events of a timeline.

    Args:
        open_range: Called with the name of each span, to open a range in another profiler too.

    Attributes:
        events: The events, in Chrome's trace format. Times are in microseconds.
    """

    def __init__(self, open_range: OpenRange = nullcontext) -> None:
        self.events: list[dict[str, Any]] = []
        self._open_range = open_range
        self._threads: dict[int, str] = {}

    @contextmanager
    def span(self, name: str, category: str, **arguments: Any) -> Iterator[None]:
        """Record the time that the `with` block takes, on its thread."""
        with self._open_range(name):
            started = time.perf_counter_ns()
            try:
                yield
            finally:
                duration = (time.perf_counter_ns() - started) / 1000
                self._add(name, category, started, args=arguments, ph="X", dur=duration)

    def mark(self, phase: str, name: str, key: str) -> None:
        """Record the begin or the end of work that no single thread does.

        Args:
            phase: "b" for the begin, "e" for the end.
            name: The name of the work in the timeline.
            key: The same text for the begin and the end of one piece of work.
        """
        self._add(name, "batch", time.perf_counter_ns(), args={}, ph=phase, id=key)

    def as_json(self, **about: Any) -> dict[str, Any]:
        """Return the trace: all events, the names of the threads, and `about` as "otherData"."""
        head = {"ph": "M", "name": "thread_name", "pid": os.getpid()}
        names = [head | {"tid": tid, "args": {"name": name}} for tid, name in self._threads.items()]
        return {"traceEvents": [*names, *self.events], "displayTimeUnit": "ms", "otherData": about}

    def _add(self, name: str, category: str, at: int, **more: Any) -> None:
        thread = threading.current_thread()
        tid = thread.native_id or 0
        self._threads[tid] = thread.name
        event = {"name": name, "cat": category, "ts": at / 1000, "pid": os.getpid(), "tid": tid}
        self.events.append(event | more)


class _Current:
    recorder: SpanRecorder | None = None


_NOTHING = nullcontext()


@contextmanager
def record(open_range: OpenRange = nullcontext) -> Iterator[SpanRecorder]:
    """Record the events of all threads while the `with` block runs, and yield the recorder.

    In nested blocks, only the inner recorder records.
    """
    before, recorder = _Current.recorder, SpanRecorder(open_range)
    _Current.recorder = recorder
    try:
        yield recorder
    finally:
        _Current.recorder = before


def is_recording() -> bool:
    """Whether a `with record()` block is running, so that events are recorded."""
    return _Current.recorder is not None


def span(name: str, category: str, **arguments: Any) -> AbstractContextManager[None]:
    """Return a context that records how long its block takes; does nothing outside of `record`."""
    recorder = _Current.recorder
    return _NOTHING if recorder is None else recorder.span(name, category, **arguments)


def begin(name: str, key: str) -> None:
    """Record the begin of work that no single thread does, such as a batch in flight."""
    if (recorder := _Current.recorder) is not None:
        recorder.mark("b", name, key)


def end(name: str, key: str) -> None:
    """Record the end of the work that began with the same name and key."""
    if (recorder := _Current.recorder) is not None:
        recorder.mark("e", name, key)
