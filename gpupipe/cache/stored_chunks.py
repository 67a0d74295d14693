"""The column of a field whose samples lie in compressed chunks of stored shards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.settings import CacheOptions
from gpupipe.cache.shard_column import explain_broken
from gpupipe.cache.waiting import refetch_image
from gpupipe.dataset.chunk_column import ChunkColumn, ChunkTable
from gpupipe.dataset.columns import Rows
from gpupipe.dataset.reading import read_spans_and_crcs
from gpupipe.formats.stored_arrays import ChunkPlaces


@dataclass(frozen=True, kw_only=True)
class StoredChunkColumn(ChunkColumn):
    """A field in the chunks of stored shards, which are checked whenever they are read.

    If a chunk does not match its checksum, or its shard is gone, the download workers fetch the
    shard again, and the reader waits for it.

    Attributes:
        checksum: CRC-32 of the bytes of each chunk in the table, uint32 (C,).
        shards: The row in the listing of each of the S shards in `stores`, int64 (S,).
        is_broken: Whether each of them is a broken shard, which has one sample without a chunk,
            bool (S,).
        cache: The settings of the cache.
        url: The data set's url.
    """

    checksum: NDArray[np.uint32]
    shards: NDArray[np.int64]
    is_broken: NDArray[np.bool_]
    cache: CacheOptions
    url: str

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        broken = rows[self.is_broken[self.store[rows]]]
        if len(broken):
            raise explain_broken(self.cache, int(self.shards[self.store[broken[0]]]))
        return super().read(rows)

    def location(self, row: int, name: str) -> str:
        store = int(self.store[row])
        shard = f"{self.url}/{self.stores[store]}"
        return shard if self.is_broken[store] else f"{shard}:{name}"

    @property
    def can_sample(self) -> bool:
        return False  # a row may not be in the cache

    def take(self, rows: Rows) -> Self:
        """Return a column with the table of only those chunks that the rows need."""
        first = self.number_chunks(rows)
        starts, at = np.unique(first, return_index=True)
        counts = self.table.sizes[1, self.grid[rows[at]]]
        ends = np.cumsum(counts)
        chosen = np.arange(int(counts.sum())) + np.repeat(starts - (ends - counts), counts)
        moved = (ends - counts)[np.searchsorted(starts, first)] - first
        places, taken = self.table.places, super().take(rows)
        return replace(
            taken,
            first=taken.first + moved,
            table=ChunkTable(
                self.table.grids,
                ChunkPlaces(
                    places.file[chosen],
                    places.offset[chosen],
                    places.size[chosen],
                    places.mask[chosen],
                ),
            ),
            checksum=self.checksum[chosen],
        )

    def _read_chunks(self, numbers: Sequence[int]) -> list[NDArray[np.uint8]]:
        expected = self.checksum[list(numbers)].tolist()
        try:
            contents, crcs = read_spans_and_crcs(self._list_spans(numbers))
        except (OSError, ValueError):
            return [self._read_chunk(number) for number in numbers]
        return [
            data if crc == wanted else self._read_chunk(number)
            for number, data, crc, wanted in zip(numbers, contents, crcs, expected, strict=True)
        ]

    def _read_chunk(self, number: int) -> NDArray[np.uint8]:
        """Return the bytes of a chunk, which may be damaged or gone: then wait for the workers."""

        def read() -> NDArray[np.uint8] | None:
            try:
                (data,), (crc,) = read_spans_and_crcs(self._list_spans([number]))
            except (OSError, ValueError):
                return None
            return data if crc == self.checksum[number] else None

        file = self.files[int(self.table.places.file[number])]
        return refetch_image(self.cache, file.partition(".")[0], read)
