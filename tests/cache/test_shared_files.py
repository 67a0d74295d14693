"""Claims between real processes; the common rate limit."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpupipe.cache import shared_files
from gpupipe.cache.shared_files import Claim, RateLimit, is_abandoned
from gpupipe.runtime.files import read_json_object
from helpers.forked_python import Process

HOLD = """
import sys; from pathlib import Path; from gpupipe.cache.shared_files import Claim
claim = Claim(Path(sys.argv[1]), {'a': 1}); print('held', flush=True); sys.stdin.read()
"""


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    pipe = subprocess.PIPE
    with Process(["-c", HOLD, path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert not is_abandoned(path)
        assert read_json_object(path) == {"a": 1}
        holder.send_signal(signal.SIGKILL)
    assert path.exists()
    assert is_abandoned(path)


def test_a_claim_that_is_released_or_collected_is_gone(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {})
    assert not is_abandoned(tmp_path / "a")
    claim.release()
    claim.release()
    claim.write({"late": 1})
    assert not (tmp_path / "a").exists()
    assert read_json_object(tmp_path / "a") == {}
    Claim(tmp_path / "b", {})
    assert not (tmp_path / "b").exists()


def test_a_forked_child_does_not_take_the_claim_with_it(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"n": 1})
    child = os.fork()
    if child == 0:
        claim.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_json_object(tmp_path / "a") == {"n": 1}
    assert not is_abandoned(tmp_path / "a")
    claim.release()


def test_writing_in_place_never_shortens_the_file(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "a", {"long": "x" * 5000})
    size = (tmp_path / "a").stat().st_size
    claim.write({"short": 1})
    assert (tmp_path / "a").stat().st_size == size == 8192
    assert read_json_object(tmp_path / "a") == {"short": 1}
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
    monkeypatch.setattr(shared_files, "_BOOT_ID", tmp_path / "boot_id")
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
