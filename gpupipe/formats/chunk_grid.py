"""ChunkGrid: how an array is cut into chunks, and how the bytes of a chunk become numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError, chunk_codecs
from gpupipe.formats.chunk_codecs import Codec

MAX_CHUNK_BYTES = 1 << 30


@dataclass(frozen=True)
class ChunkGrid:
    """A regular grid of chunks. Its chunks are numbered in C order.

    Attributes:
        dtype: NumPy's `str` of the stored numbers, with their byte order, such as ">f4".
        shape: The shape of the array. The first axis counts samples.
        chunk: The shape of a chunk. Chunks at the end of an axis are stored whole.
        codecs: The codecs that encoded a chunk, in this order; see `chunk_codecs`.
        fill: The bytes of the number in chunks that are not stored, in hexadecimal.
        axes: The order of the axes in a stored chunk; () if it is that of `shape`.
    """

    dtype: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    codecs: tuple[Codec, ...] = ()
    fill: str = ""
    axes: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the grid as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "ChunkGrid":
        """Return the grid that `to_json` returned as JSON."""
        lists = {name: tuple(entry[name]) for name in ("shape", "chunk", "codecs", "axes")}
        return cls(entry["dtype"], fill=entry["fill"], **lists)

    @cached_property
    def stored(self) -> np.dtype[Any]:
        """The dtype of the stored numbers."""
        return np.dtype(self.dtype)

    @cached_property
    def native(self) -> np.dtype[Any]:
        """The dtype of the numbers in native byte order."""
        return self.stored.newbyteorder("=")

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        pairs = zip(self.shape, self.chunk, strict=True)
        return tuple(-(-length // size) for length, size in pairs)

    @cached_property
    def num_chunks(self) -> int:
        return math.prod(self.counts)

    @cached_property
    def chunks_per_row(self) -> int:
        """The number of chunks that hold a part of one row of the first axis."""
        return math.prod(self.counts[1:])

    @cached_property
    def chunk_bytes(self) -> int:
        """The size of a decoded chunk in bytes."""
        return math.prod(self.chunk) * self.stored.itemsize

    @cached_property
    def row_bytes(self) -> int:
        """The size of a row of the first axis in bytes."""
        return math.prod(self.shape[1:]) * self.stored.itemsize

    @cached_property
    def holds_whole_rows(self) -> bool:
        """Whether each row lies in one chunk."""
        return self.chunk[1:] == self.shape[1:]

    @cached_property
    def shares_chunks(self) -> bool:
        """Whether a chunk holds parts of several rows."""
        return self.chunk[0] > 1

    @cached_property
    def is_plain(self) -> bool:
        """Whether the bytes of a row in the file are those of its numbers in memory."""
        ordered = self.axes in ((), tuple(range(len(self.shape))))
        return not self.codecs and self.stored.isnative and ordered and self.holds_whole_rows

    def add_axis(self) -> "ChunkGrid":
        """Return the grid of the same array as the only row of an array."""
        axes = (0, *(axis + 1 for axis in self.axes)) if self.axes else ()
        return ChunkGrid(
            self.dtype, (1, *self.shape), (1, *self.chunk), self.codecs, self.fill, axes
        )

    def decode(self, data: NDArray[np.uint8], mask: int) -> NDArray[Any]:
        """Return the numbers of a chunk, of the shape `chunk`, in native byte order and C order.

        Args:
            data: The bytes of the chunk in the file.
            mask: Bit n is set if codec n was left out when the chunk was written.

        Raises:
            DamagedError: The chunk is damaged.
            ImportError: A package that a codec needs is missing.
        """
        content = chunk_codecs.decode(data, self.codecs, self.chunk_bytes, mask)
        numbers = np.ascontiguousarray(content).view(self.stored)
        if self.axes:
            stored_shape = [self.chunk[axis] for axis in self.axes]
            numbers = numbers.reshape(stored_shape).transpose(np.argsort(self.axes))
        return np.ascontiguousarray(numbers.reshape(self.chunk), self.native)

    def make_filled(self) -> NDArray[Any]:
        """Return a chunk of nothing but the fill value, a view of one number."""
        value = np.frombuffer(bytes.fromhex(self.fill), self.stored).astype(self.native)
        return np.broadcast_to(value.reshape(()), self.chunk)

    def cut_row(self, row: int, chunks: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return a row in C order, from the decoded chunks that hold parts of it.

        Args:
            row: The row.
            chunks: The `chunks_per_row` chunks, in their order.
        """
        inner = row % self.chunk[0]
        if self.holds_whole_rows:
            return np.ascontiguousarray(chunks[0][inner])
        out = np.empty(self.shape[1:], self.native)
        for position, chunk in zip(np.ndindex(*self.counts[1:]), chunks, strict=True):
            begins = [p * size for p, size in zip(position, self.chunk[1:], strict=True)]
            sizes = [
                min(size, length - begin)
                for begin, size, length in zip(begins, self.chunk[1:], self.shape[1:], strict=True)
            ]
            pairs = zip(begins, sizes, strict=True)
            where = tuple(slice(begin, begin + size) for begin, size in pairs)
            out[where] = chunk[inner][tuple(map(slice, sizes))]
        return out

    def check(self, max_rows: int) -> None:
        """Raise ValueError if gpupipe cannot read such an array.

        Args:
            max_rows: The most rows that the file can be expected to hold.
        """
        if any(n < 0 for n in self.shape) or any(n < 1 for n in self.chunk):
            raise DamagedError(f"the shape {self.shape} in chunks of {self.chunk}: no array has it")
        if self.shape[0] > max_rows:
            raise DamagedError(f"{self.shape[0]:,} rows, far more than the bytes of the file hold")
        if self.num_chunks > max(max_rows, self.shape[0]):
            raise DamagedError(
                f"{self.num_chunks:,} chunks, far more than the bytes of the file hold"
            )
        largest = max(self.chunk_bytes, self.row_bytes)
        if not self.is_plain and largest > MAX_CHUNK_BYTES:
            raise ValueError(
                f"chunks or samples of {largest:,} bytes, more than gpupipe decodes at once "
                f"({MAX_CHUNK_BYTES:,}): write it in smaller chunks"
            )
