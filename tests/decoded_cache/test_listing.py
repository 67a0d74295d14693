"""What decoded caches there are, and how they are emptied."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache import location
from gpupipe.decoded_cache.listing import empty_caches, list_caches

OPTIONS = DecodedCacheOptions(where="disk", max_bytes="1MB")


@pytest.fixture
def files() -> list[Path]:
    """Two caches on the disk."""
    jobs = [location.describe_job(root, None, "cpu", (), {}) for root in ("/one", "/two")]
    return sorted(location.prepare_file(OPTIONS, job, 100) for job in jobs)


def test_each_cache_says_what_it_is_for(files: list[Path]) -> None:
    states = list_caches(["disk"])
    assert [state.path for state in states] == [str(file) for file in files]
    assert {state.root for state in states} == {"/one", "/two"}
    for state in states:
        assert (state.max_bytes, state.images, state.share) == (1_000_000, 0, None)
        assert (state.engine, state.in_use, state.damaged) == ("cpu", False, "")


def test_a_damaged_one_is_listed_with_the_reason(files: list[Path]) -> None:
    files[0].write_bytes(b"damage")
    damaged, sound = list_caches(["disk"])
    assert "no cache file of this version" in damaged.damaged
    assert (damaged.max_bytes, sound.damaged) == (6, "")


def test_emptying_removes_all_and_says_what_there_was(files: list[Path]) -> None:
    assert [state.path for state in empty_caches(["disk"])] == [str(file) for file in files]
    assert not any(file.exists() for file in files)
    assert list_caches(["disk"]) == []
