"""The rate limit of all download workers of a cache, which share a file."""

import time
from pathlib import Path

import pytest

from gpupipe.cache import rate_limit
from gpupipe.cache.rate_limit import RateLimit


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
    monkeypatch.setattr(rate_limit, "_BOOT_ID", tmp_path / "boot_id")
    wall, monotonic = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() - 10**6)
    rate = RateLimit(tmp_path / "rate", 1000, waits.append)
    started = monotonic()
    rate.take(1000)
    assert 0.5 <= waits[1] <= 61
    rate.take(1000)
    assert waits[1] + 1 - (monotonic() - started) <= waits[2] <= waits[1] + 1.01


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
    started = time.monotonic()
    rate.take(1000)
    rate.take(1000)
    assert waits[0] == 0.5
    assert 1.5 - (time.monotonic() - started) <= waits[1] <= 1.51
