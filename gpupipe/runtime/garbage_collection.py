"""Pauses Python's collection of garbage while modules are imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect no garbage in the context.

    Imports leave none behind. But they make so many objects that a collection of all begins, which
    takes 0.1 s with torch's in memory.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
