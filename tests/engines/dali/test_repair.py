"""An image that nothing is wrong with: it passes where DALI works, and the machine is blamed where
it does not.
"""

from __future__ import annotations

import pytest

import gpupipe
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.repair import KnownGood


def test_it_passes_where_the_machine_works_also_after_it_was_closed() -> None:
    known_good = KnownGood(None)
    for _ in range(2):
        known_good.check("Failed to decode")
    known_good.close()
    known_good.close()
    known_good.check("Failed to decode")


def test_a_decoder_that_fails_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that is given no image stands in for one that does not work."""
    working, known_good = ops.decode, KnownGood(None)
    monkeypatch.setattr(ops, "decode", lambda data, *others: working(data[4:], *others))
    for _ in range(2):
        with pytest.raises(
            gpupipe.EngineError, match=r"nothing is wrong with.*to blame for 'Failed to decode #3'"
        ):
            known_good.check("Error in CPU operator\nFailed to decode #3")
    monkeypatch.undo()
    known_good.check("Failed to decode")
