"""Samples that could not be fetched, and when they are tried again."""

from __future__ import annotations

import time

import pytest

from gpupipe.cache.filling.fetching import FailedRows


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
