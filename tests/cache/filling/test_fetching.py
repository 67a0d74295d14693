"""Which samples are drawn, and when those that could not be fetched are tried again."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from gpupipe.cache.filling.fetching import FailedRows, RowSelection


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_clock_that_is_set_changes_nothing(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    failed, wall, monotonic = FailedRows(), time.time, time.monotonic
    failed.add(3, "a test")
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    assert failed.list_waiting() == [3]
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 31)
    assert failed.list_waiting() == []
    failed.add(3, "again")
    assert failed.list_waiting() == [3]


def test_pauses_double_up_to_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses, failed = 0.0, [], FailedRows()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(10):
        failed.add(3, "a test")
        start = now
        while failed.list_waiting():
            now += 10
        pauses.append(now - start)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


def test_draws_are_without_replacement(make: Any) -> None:
    made = make()
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        rows = selection.draw(1, FailedRows())
    assert np.array_equal(np.sort(rows), np.arange(40))


def test_rows_that_failed_wait_and_those_that_others_fetched_are_forgotten(make: Any) -> None:
    made = make()
    failed = FailedRows()
    failed.add(3, "a/3.jpg: HTTP 500")
    selection = RowSelection(made.folder, made.listing, seed=0, is_weighted=False)
    with made.folder.lock():
        claim = made.folder.create_claim("claims", "00000001", {"rows": [5]})
        assert set(range(40)) - set(selection.draw(2, failed).tolist()) == {3, 5}
        claim.write({"rows": [3]})
        selection.draw(2, failed)
    assert not len(failed)
    claim.release()
