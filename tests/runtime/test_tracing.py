"""Events of a trace, and the ranges that another profiler gets."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpupipe.runtime import tracing


class Ranges:
    """Opens ranges, as torch.cuda.nvtx.range does where there is a GPU."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.all: list[str] = []

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self.open.append(name)
        self.all.append(name)
        try:
            yield
        finally:
            self.open.pop()


def test_nothing_is_recorded_without_a_recorder() -> None:
    assert not tracing.is_recording()
    with tracing.span("a", "loader"):
        tracing.begin("b", "1")
        tracing.end("b", "1")
    assert tracing.span("a", "loader") is tracing.span("b", "loader"), "it costs no object"


def test_spans_of_all_threads_have_times_and_names() -> None:
    def work() -> None:
        with tracing.span("inner", "operator", row=3):
            pass

    with tracing.record() as recorder:
        with tracing.span("outer", "trainer"):
            thread = threading.Thread(target=work, name="worker")
            thread.start()
            thread.join()
        tracing.begin("batch in flight", "0:8")
        tracing.end("batch in flight", "0:8")
    assert not tracing.is_recording()
    trace = recorder.as_json(engine="cpu")
    events: dict[Any, Any] = {(e["name"], e["ph"]): e for e in recorder.events}
    outer, inner = events["outer", "X"], events["inner", "X"]
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.01
    assert inner["args"] == {"row": 3}
    assert inner["tid"] != outer["tid"]
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names[inner["tid"]] == "worker"
    assert events["batch in flight", "b"]["id"] == events["batch in flight", "e"]["id"] == "0:8"
    assert trace["otherData"] == {"engine": "cpu"}


def test_ranges_of_the_same_names_are_nested_and_closed() -> None:
    ranges = Ranges()
    with (
        tracing.record(ranges.range),
        pytest.raises(ValueError, match="failed"),
        tracing.span("wait", "trainer"),
    ):
        with tracing.span("hand-over", "loader"):
            assert ranges.open == ["wait", "hand-over"]
        raise ValueError("failed")
    assert ranges.all == ["wait", "hand-over"]
    assert ranges.open == []


def test_an_inner_recorder_takes_over() -> None:
    with tracing.record() as outer:
        with tracing.record() as inner, tracing.span("a", "loader"):
            pass
        with tracing.span("b", "loader"):
            pass
    assert [e["name"] for e in inner.events] == ["a"]
    assert [e["name"] for e in outer.events] == ["b"]
