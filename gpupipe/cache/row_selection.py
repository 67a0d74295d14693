"""Selects the rows of the next shard: at random, by weight, among those that nobody has fetched."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache import shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.filling.fetching import FailedRows
from gpupipe.cache.listing import UNKNOWN, Listing
from gpupipe.cache.shard_files import ShardSample

_MAX_DRAWN_ROWS = 100_000
_MAX_SAMPLES_OF_UNKNOWN_SIZE = 4096


class RowSelection:
    """Selects rows that are neither cached nor being fetched. All methods need the lock.

    Args:
        folder: The cache.
        listing: The rows of the data set.
        seed: Seed of the order in which samples are drawn.
        is_weighted: Whether to draw samples in proportion to the listing's weights.
    """

    def __init__(self, folder: CacheFolder, listing: Listing, seed: int, is_weighted: bool) -> None:
        self._folder, self._listing, self._seed = folder, listing, seed
        self._weights = listing.weights if is_weighted else None
        self._rows_of_shards: dict[str, NDArray[np.int64]] = {}
        self._generation = -1
        self._is_uncached: NDArray[np.bool_] = np.empty(0, bool)

    def draw(self, number: int, failed: FailedRows) -> NDArray[np.int64]:
        """Draw up to 100,000 rows that no worker has cached or is fetching.

        The order is random without replacement; a row's probability follows its weight. The row
        with the smallest exponential variate divided by its weight comes first.

        Args:
            number: The number of the shard, which seeds the draw.
            failed: Rows that could not be fetched. Those that others fetched since are removed.
        """
        rows = self._list_available(failed)
        if not len(rows):
            return rows
        random = np.random.default_rng([self._seed, number])
        times = random.exponential(size=len(rows))
        if self._weights is not None:
            times /= self._weights[rows]
        count = min(len(rows), _MAX_DRAWN_ROWS)
        first = np.argpartition(times, count - 1)[:count]
        return rows[first[np.argsort(times[first])]]

    def _list_available(self, failed: FailedRows) -> NDArray[np.int64]:
        is_available = self._find_uncached().copy()
        for claim in self._folder.read_claims().values():
            is_available[claim.get("rows", [])] = False
        for row in [row for row in failed.reasons if not is_available[row]]:
            failed.remove(row)  # another worker fetched it
        is_available[failed.list_waiting()] = False
        return np.flatnonzero(is_available)

    def _find_uncached(self) -> NDArray[np.bool_]:
        """Return the rows of weight above 0 that are not in the newest generation, bool (N,)."""
        log = self._folder.commit_log
        if self._generation != log.generation:
            is_uncached = (
                np.ones(len(self._listing), bool)
                if self._weights is None
                else np.asarray(self._weights) > 0
            )
            self._rows_of_shards = {
                name: self._read_rows(shard) for name, shard in log.live_shards().items()
            }
            for rows in self._rows_of_shards.values():
                is_uncached[rows] = False
            self._generation, self._is_uncached = log.generation, is_uncached
        return self._is_uncached

    def _read_rows(self, shard: CachedShard) -> NDArray[np.int64]:
        rows = self._rows_of_shards.get(shard.name)
        if rows is None:
            rows = shard_files.load_table(self._folder.table_path(shard.name), shard.table_hash)[0]
        return rows

    def choose_samples(self, rows: NDArray[np.int64]) -> tuple[list[ShardSample], int]:
        """Return the samples of the next shard, and the bytes to reserve for it.

        If a sample's size is unknown, take up to 4,096 samples and reserve at least a whole shard.

        Args:
            rows: Rows in the order in which they are wanted, from `draw`.
        """
        samples: list[ShardSample] = []
        total, shard_size = shard_files.END, int(self._folder.options.shard_size)
        for row in rows.tolist():
            sample, size = self._listing.get_sample(row), int(self._listing.sizes[row])
            stored_size = sample.stored_size(max(size, 0))
            if (samples and total + stored_size > shard_size) or (
                len(samples) == _MAX_SAMPLES_OF_UNKNOWN_SIZE and size == UNKNOWN
            ):
                break
            samples.append(sample)
            total += stored_size
        is_exact = all(self._listing.sizes[s.row] != UNKNOWN for s in samples)
        return samples, total if is_exact else max(total, shard_size)
