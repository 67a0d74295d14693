"""ChunkOrder: a shuffled order in which the samples of a chunk come near each other.

    chunks, permuted     7    2    9    0    5    ...
    position of a chunk  0    1    2    3    4

A sample's key is the position of its chunk plus `buffer` * u, where u is uniform in [0, 1); samples
come in the order of their keys. So the samples of a chunk lie within a window of `buffer` chunks,
at any time at most `buffer` + 1 chunks are in use, and chunks come into use evenly. All of it is a
function of the seed and the pass alone, and each sample comes once. It is no full permutation: two
samples of one chunk are never further apart than the window.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.index import Index
from gpupipe.sampling import draws

_MIX = draws.stream("mix of chunks")


@runtime_checkable
class ChunkOrdered(Protocol):
    """A source whose samples share chunks, which cost much to read."""

    @property
    def is_ordered_by_chunks(self) -> bool:
        """Whether the user asks for such an order."""

    def chunk_order(self, index: Index) -> "ChunkOrder | None":
        """Return the order of the samples in a shuffled pass; None for a full permutation."""


@dataclass(frozen=True, eq=False)
class ChunkOrder:
    """The chunk of each sample, and how far samples are mixed.

    Attributes:
        number_chunks: Returns the number of the chunk of each of some rows of the index, int64
            (n,); of all rows for None.
        buffer: The number of chunks that are mixed.
    """

    number_chunks: Callable[[NDArray[np.int64] | None], NDArray[np.int64]]
    buffer: int

    def __str__(self) -> str:
        """Return the text that a loader state stores."""
        return f"chunks, buffer {self.buffer}"

    def permute(self, seed: int, number: int, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the order of a pass: positions in `rows`, int64 (n,).

        Args:
            seed: The loader's seed.
            number: The number of the pass.
            rows: The rows of the index to choose from, int64 (n,); None: all.
        """
        _, chunk = np.unique(self.number_chunks(rows), return_inverse=True)
        count = int(chunk.max()) + 1
        position = np.empty(count, np.int64)
        position[draws.permutation(seed, number, count, "order of chunks")] = np.arange(count)
        samples = np.arange(len(chunk), dtype=np.int64)
        keys = draws.uniform(seed, number, samples, _MIX, 1)[:, 0]
        keys *= self.buffer
        keys += position[chunk]
        return np.argsort(keys, kind="stable")
