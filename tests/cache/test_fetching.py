"""Which samples are drawn, when failed ones are tried again, and the rate limit of all workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.cache import fetching
from gpupipe.cache.fetching import FailedRows, RateLimit, RowSelection


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


def test_a_rate_limit_is_of_all_workers_together(tmp_path: Path) -> None:
    waits: list[float] = []
    first, second = (RateLimit(tmp_path / "rate", 1000, waits.append) for _ in range(2))
    started = time.monotonic()
    for rate in (first, second, first, second):
        rate.take(1000)
    behind = time.monotonic() - started
    assert all(n + 0.5 - behind <= wait <= n + 0.5 + 0.01 for n, wait in enumerate(waits))
    RateLimit(tmp_path / "other", None, waits.append).take(10**12)
    assert len(waits) == 4


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_clock_that_is_set_neither_stalls_nor_floods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    waits: list[float] = []
    started, wall = time.monotonic(), time.time
    RateLimit(tmp_path / "rate", 1000, waits.append).take(20_000)
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    RateLimit(tmp_path / "rate", 1000, waits.append).take(1000)
    behind = time.monotonic() - started
    assert 20.5 - behind <= waits[1] <= 20.51


@pytest.mark.parametrize("seconds", [-86_400, 86_400])
def test_a_time_of_before_a_reboot_or_of_another_machine_stalls_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    waits: list[float] = []
    RateLimit(tmp_path / "rate", 1000, waits.append).take(20_000)
    (tmp_path / "boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    monkeypatch.setattr(fetching, "_BOOT_ID", tmp_path / "boot_id")
    wall, monotonic = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() - 10**6)
    rate = RateLimit(tmp_path / "rate", 1000, waits.append)
    rate.take(1000)
    assert 0.5 <= waits[1] <= 61
    rate.take(1000)
    assert waits[2] == pytest.approx(waits[1] + 1, abs=0.2)


def test_a_file_stalls_nobody_for_longer_than_an_hour(tmp_path: Path) -> None:
    """Whatever it holds: damage, or the bytes that were taken under a much lower limit."""
    waits: list[float] = []
    RateLimit(tmp_path / "rate", 1, waits.append).take(10**9)
    RateLimit(tmp_path / "rate", 1000, waits.append).take(1000)
    assert waits[1] == 3601


def test_a_file_of_another_length_is_replaced(tmp_path: Path) -> None:
    waits: list[float] = []
    (tmp_path / "rate").write_bytes(bytes(8))
    rate = RateLimit(tmp_path / "rate", 1000, waits.append)
    rate.take(1000)
    rate.take(1000)
    assert waits == pytest.approx([0.5, 1.5], abs=0.2)
