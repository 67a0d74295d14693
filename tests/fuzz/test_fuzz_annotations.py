"""A short run of the damages to files of annotations; 2,000 of them with `make test-all`."""

import sys
from pathlib import Path

import pytest

from helpers.full_product import IS_FULL

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_annotations import run


def test_damaged_annotations_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", "")  # run() changes it
    count = 2000 if IS_FULL else 300
    counts = run(count)
    assert {result for _, result in counts} == {"named error", "named sample", "read"}, counts
    assert sum(counts.values()) == count
