from __future__ import annotations

import logging

import pytest

from gpupipe.engines.ray.capacity import Demand, choose_window
from gpupipe.errors import EngineError

SMALL = Demand(batch_bytes=10_000_000, finished=2, trainers=1, store_bytes=200_000_000)


def test_a_window_that_fits_is_taken() -> None:
    assert SMALL.largest_window == 12
    assert choose_window(SMALL, 12, True) == 12


def test_a_default_window_shrinks_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert choose_window(SMALL, 13, False) == 12
    assert "200 MB" in caplog.text and "10.0 MB" in caplog.text


def test_an_explicit_window_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"17 batches of 10\.0 MB need 170 MB, and 80% of 200 MB"):
        choose_window(SMALL, 13, True)


def test_trainers_of_a_node_share_its_store() -> None:
    two = Demand(batch_bytes=10_000_000, finished=2, trainers=2, store_bytes=200_000_000)
    assert two.largest_window == 4
    large = Demand(batch_bytes=40_000_000, finished=2, trainers=1, store_bytes=200_000_000)
    with pytest.raises(EngineError, match="--object-store-memory"):
        choose_window(large, 10, False)
