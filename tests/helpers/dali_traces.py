"""DALI's stack traces of operators."""

from collections.abc import Iterator
from contextlib import contextmanager

from nvidia.dali._utils import dali_trace


@contextmanager
def turned_off() -> Iterator[None]:
    """Build graphs in half of the time: DALI notes the Python stack at each operator, for its
    messages.
    """
    was_on = dali_trace.is_tracing_enabled()
    dali_trace.set_tracing(enabled=False)
    try:
        yield
    finally:
        dali_trace.set_tracing(enabled=was_on)
