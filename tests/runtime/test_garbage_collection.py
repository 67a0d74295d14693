"""No garbage is collected while modules are imported."""

from __future__ import annotations

import gc

import pytest

from gpupipe.runtime.garbage_collection import pause_collection


def test_a_pause_ends_with_the_context_also_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), pause_collection():
        assert not gc.isenabled()
        _ = 1 / 0
    assert gc.isenabled()


def test_a_collection_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with pause_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
