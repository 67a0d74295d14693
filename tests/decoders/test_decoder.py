"""Errors of decoders that are called from Python: of the file, or of the machine."""

from __future__ import annotations

import pytest

from gpupipe.decoders.decoder import CannotDecodeError, find_blame
from gpupipe.errors import EngineError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("not enough data"), "not enough data"),
        (RuntimeError("Invalid SOS parameters"), "Invalid SOS parameters"),
        (ValueError(), "ValueError"),
        (CannotDecodeError("no image"), "no image"),
    ],
    ids=repr,
)
def test_a_damaged_file_cannot_be_decoded(error: Exception, message: str) -> None:
    found = find_blame(error)
    assert isinstance(found, CannotDecodeError)
    assert str(found) == message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("std::bad_alloc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        OSError(24, "Too many open files"),
        MemoryError(),
        DeprecationWarning("of the library"),
        EngineError("the library is of another torch"),
    ],
    ids=repr,
)
def test_no_file_is_blamed_for_the_machine(error: Exception) -> None:
    assert find_blame(error) is error
