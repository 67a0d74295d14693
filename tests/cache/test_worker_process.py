"""A download worker starts before its task is known, where the text of a config asks for one."""

import os
import signal
from pathlib import Path

import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.worker_pool import list_dataset
from gpupipe.cache.worker_process import start_early
from helpers.cached_loading import alive, waited
from helpers.leftovers import list_children


def new_children(before: set[int]) -> set[int]:
    return set(list_children(os.getpid())) - before


@pytest.fixture
def before(blobs: Path, tmp_path: Path) -> set[int]:
    """The children of this process, after that which the others are forks of has begun."""
    with start_early(b"", "file"):
        pass
    return set(list_children(os.getpid()))


def test_the_first_worker_is_the_one_that_was_started_early(
    blobs: Path, tmp_path: Path, before: set[int]
) -> None:
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=f"file://{blobs}")
    folder = prepare_folder(options, data)
    with start_early(b"", "file"):
        early = new_children(before)
        idle = list_dataset(data, options)
        assert new_children(before) == early
        folder.listing_path.unlink()
        other = list_dataset(data, options)  # the early one is taken
        assert len(new_children(before)) == 2
        other.end()
    assert len(early) == 1
    assert new_children(before) == early
    assert len(listing.load(folder)) == 40
    idle.end()


def test_a_worker_that_was_killed_is_not_taken(
    blobs: Path, tmp_path: Path, before: set[int]
) -> None:
    options = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size="100kB")
    data = DataSet(url=f"file://{blobs}")
    folder = prepare_folder(options, data)
    with start_early(b"", "file"):
        (early,) = new_children(before)
        os.kill(early, signal.SIGKILL)
        waited(lambda: not alive(early), 100)
        list_dataset(data, options).end()
    assert listing.is_listed(folder)
