"""A short run of the damages to saved indexes."""

import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_index import run


def test_a_damaged_index_is_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", "")  # run() changes it
    caplog.set_level(logging.ERROR, "gpupipe")
    counts = run(60)
    assert {outcome for _, outcome in counts} <= {"made again", "no difference"}, counts
    assert sum(counts.values()) == 60
