"""No garbage is collected while modules are imported."""

import gc
import subprocess
import sys

import pytest

from gpupipe.runtime.garbage_collection import pause_collection

PROGRAM = """
import gc
from gpupipe.runtime.garbage_collection import pause_collection

collected = []
gc.callbacks.append(lambda phase, info: collected.append(info["generation"]))
with pause_collection():
    collected.clear()
    import decimal
    made = [[n] for n in range(100_000)]
assert collected == [] and gc.get_count()[0] < 100 and not gc.get_freeze_count()
gc.collect()
assert collected == [2, 2]
with pause_collection():
    made += [[n] for n in range(300)]
assert gc.get_count()[0] >= 300, "nothing was imported, so nothing counts as old"
gc.freeze()
frozen = gc.get_freeze_count()
with pause_collection():
    import fractions
assert gc.get_freeze_count() == frozen > 100_000
"""


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


def test_no_collection_follows_a_pause_and_what_is_frozen_stays_so() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
