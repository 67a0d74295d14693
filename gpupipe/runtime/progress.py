"""The progress of a long task, and a bar that shows it below the cell of a notebook."""

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import Any

Progress = Callable[[str, int, int | None], None]
"""Called with an activity, the number of items done, and their total (None if it is unknown)."""
_PATIENCE, _PAUSE = 0.5, 0.2  # seconds before the bar appears, and between its changes


def ignore_progress(activity: str, done: int, total: int | None) -> None:
    """Do nothing. Passed as the Progress of a task whose progress is not shown."""


@contextmanager
def notebook_progress() -> Iterator[Progress]:
    """Yield a Progress that shows a bar in a notebook, and nothing elsewhere.

    The bar disappears at the end.
    """
    if not _is_notebook():
        yield ignore_progress
        return
    bar = _ProgressBar()
    try:
        yield bar.show
    finally:
        bar.remove()


def _is_notebook() -> bool:
    """Whether this code runs in the kernel of a notebook, and not in a script or a terminal."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


class _ProgressBar:
    def __init__(self) -> None:
        self._next = monotonic() + _PATIENCE
        self._display: Any = None

    def show(self, activity: str, done: int, total: int | None) -> None:
        if (now := monotonic()) < self._next:
            return
        self._next = now + _PAUSE
        state = f' value="{done}" max="{total}"' if total else ""
        count = f" {done:,} of {total:,}" if total else f" {done:,}" if done else ""
        text = f"{activity}{count}"
        self._write(f"<progress{state}></progress> {html.escape(text)}", text)

    def remove(self) -> None:
        if self._display is not None:
            self._write("", "")

    def _write(self, page: str, text: str) -> None:
        display: Any = import_module("IPython.display").display
        content = {"text/html": page, "text/plain": text}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)
