"""A short run of the damages to saved indexes."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_index import run

from gpupipe.dataset import index_cache


def test_a_damaged_index_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_cache, "_RACY_SECONDS", index_cache._RACY_SECONDS)  # run() changes it
    monkeypatch.setenv("GPUPIPE_CACHE", "")  # and this
    caplog.set_level(logging.ERROR, "gpupipe")
    counts = run(60)
    assert {outcome for _, outcome in counts} <= {"made again", "no difference"}, counts
    assert sum(counts.values()) == 60
