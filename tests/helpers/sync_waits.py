"""Where the thread of a test waits for the GPU, as torch sees it."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WAIT = "called a synchronizing CUDA operation"


@contextmanager
def waits_of_this_thread() -> Iterator[list[str]]:
    """Collect where this thread waits for the GPU. Other threads may: the remote engine's does.

    torch's mode is one for all threads, so it must warn: to raise, it would raise in any thread.
    torch also warns that the mode is a prototype.
    """
    own, waits = threading.current_thread(), list[str]()

    def note(message: Any, category: Any, file: str, line: int, *_: Any) -> None:
        if threading.current_thread() is own and _WAIT in str(message):
            waits.append(f"{file}:{line}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note  # type: ignore[assignment]
        try:
            torch.cuda.set_sync_debug_mode("warn")
            yield waits
        finally:
            torch.cuda.set_sync_debug_mode("default")
