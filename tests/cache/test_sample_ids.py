"""The ids of samples: which shard and which number in it each is."""

import numpy as np

from gpupipe.cache.sample_ids import find_number, join_ids, split_ids

FIRST = np.array([0, 7 << 32, (7 << 32) + 3, 2**30 << 32])
"""A file, the two parts of another one, and a third file."""


def test_ids_are_joined_and_split() -> None:
    counts = np.array([1, 3, 2, 1])
    ids = join_ids(FIRST, counts)
    assert (np.diff(ids) > 0).all()
    assert ids.dtype == np.int64
    shards, numbers = split_ids(ids, FIRST)
    assert shards.tolist() == [0, 1, 1, 1, 2, 2, 3]
    assert numbers.tolist() == [0, 0, 1, 2, 0, 1, 0]
    assert [find_number(id) for id in ids.tolist()] == [0, 0, 1, 2, 3, 4, 0]
    assert [id >> 32 for id in ids.tolist()] == [0, 7, 7, 7, 7, 7, 2**30]
