"""Tells a damaged file from a failed machine, for decoders that are called from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpupipe.runtime.machine_failures import machine_failure


class CannotDecodeError(RuntimeError):
    """The image is damaged, too large, or of a kind that has no meaning as pixels."""


@contextmanager
def blame_file() -> Iterator[None]:
    """Raise the errors of a decoder as CannotDecodeError, unless the machine caused them."""
    try:
        yield
    except (CannotDecodeError, MemoryError, DeprecationWarning):  # no file causes the last
        raise
    except Exception as e:
        if machine_failure(e):
            raise
        raise CannotDecodeError(str(e) or type(e).__name__) from e
