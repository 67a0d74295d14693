"""The ids of the samples in stored shards, which never change.

A sample's id is the number of its file in the sorted listing times 2**32, plus its number in the
file. So ids, and what is drawn from them, do not depend on which shards came first, nor on the
parts that a file is fetched in. What a Zarr folder is cut into counts as files.
"""

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import file_parts
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import Listing
from gpupipe.dataset.columns import Rows

_BITS = 32


def list_first_ids(folder: CacheFolder, listing: Listing) -> NDArray[np.int64]:
    """Return the id of the first sample of each shard in the listing, ascending, int64 (N,)."""
    parts = file_parts.load(folder)
    return np.arange(len(listing)) << _BITS if parts is None else parts.first_ids


def split_ids(ids: Rows, first_ids: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """Return the position in `first_ids` of each id's shard, and the sample's number in it."""
    shards = np.maximum(np.searchsorted(first_ids, ids, side="right") - 1, 0)
    return shards, ids - first_ids[shards]


def join_ids(first_ids: NDArray[np.int64], counts: Rows) -> Rows:
    """Return the ids of all samples of shards, int64 (sum of counts,).

    Args:
        first_ids: The id of the first sample of each shard, int64 (S,).
        counts: The number of samples of each shard, int64 (S,).
    """
    numbers = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    ids: Rows = np.repeat(first_ids, counts) + numbers
    return ids


def find_number(id: int) -> int:
    """Return a sample's number in its file."""
    return id & (1 << _BITS) - 1
