"""Where samples are: the locations of all shards at hand, of some, and of none."""

import numpy as np
import pytest

from gpupipe.cache import listing
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.sample_locations import SampleLocations, locate_newest
from gpupipe.cache.shard_column import NO_SHARD, ShardColumn, create_column
from gpupipe.errors import DataError
from helpers.cached_loading import Config, complete


@pytest.fixture
def folder(config: Config) -> CacheFolder:
    complete_folder = complete(config(workers=0))
    complete_folder.commit_log.refresh()
    return complete_folder


def new_column(folder: CacheFolder) -> ShardColumn:
    count = len(listing.load(folder))
    return create_column(folder, "file:///x", np.full(count, -1, np.int64))


def test_all_samples_of_a_complete_cache_are_located(folder: CacheFolder) -> None:
    column = new_column(folder)
    rows = locate_newest(folder, column)
    assert rows.tolist() == list(range(len(column.file)))
    assert (column.file != NO_SHARD).all()
    assert all(len(data) == n for data, n in zip(column.read(rows), column.length, strict=True))


def test_samples_of_some_shards_are_located_and_forgotten(folder: CacheFolder) -> None:
    column, unmapped = new_column(folder), set[int]()
    locations = SampleLocations(folder, column, unmapped.update)
    shards = dict(list(folder.commit_log.live_shards().items())[:2])
    rows = locations.locate(shards)
    assert len(rows) == sum(shard.samples for shard in shards.values())
    assert set(column.file[rows].tolist()) == set(map(int, shards))
    absent = int(np.flatnonzero(column.file == NO_SHARD)[0])
    broken = locations.locate(shards, [absent, int(rows[0])])
    assert set(broken.tolist()) == {*rows.tolist(), absent}
    assert column.file[rows[0]] != NO_SHARD, "a row that is in a shard is not broken"
    assert unmapped == set()
    locations.forget(frozenset(shards))
    assert unmapped == set(map(int, shards))


def test_a_damaged_table_is_named(folder: CacheFolder) -> None:
    name = next(iter(folder.commit_log.live_shards()))
    table = folder.table_path(name)
    table.write_bytes(table.read_bytes()[:-8])
    with pytest.raises(DataError, match=table.name):
        locate_newest(folder, new_column(folder))
