"""Many strings in one array, which can be memory-mapped."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class StringArray:
    """N strings in one array, stored as in Arrow.

    String i is data[offsets[i] : offsets[i + 1]], as the file system encodes it.

    Attributes:
        data: The bytes of all strings, concatenated, uint8 (bytes,).
        offsets: Where each string begins, and where the last one ends, int64 (N + 1,).
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_strings(cls, strings: Iterable[str]) -> StringArray:
        encoded = [os.fsencode(string) for string in strings]
        return cls.from_ends(
            np.frombuffer(b"".join(encoded), np.uint8),
            np.cumsum([len(e) for e in encoded], dtype=np.int64),
        )

    @classmethod
    def from_ends(cls, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> StringArray:
        """Return the strings of which only the ends in `data` are known, int64 (N,)."""
        return cls(data, np.concatenate([np.zeros(1, np.int64), ends]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(self.data[self.offsets[i] : self.offsets[i + 1]].tobytes())

    def pad(self, rows: NDArray[np.int64], prefix: bytes) -> NDArray[np.uint8]:
        """Prefix each string of `rows`, and pad all to one length.

        Returns:
            uint8 (len(rows), len(prefix) + longest), padded with NUL.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max())
        content = self.data[np.minimum(starts[:, None] + columns, len(self.data) - 1)]
        padded = np.zeros((len(rows), len(prefix) + len(columns)), np.uint8)
        padded[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        padded[:, len(prefix) :] = np.where(columns < lengths[:, None], content, 0)
        return padded

    @property
    def fingerprint_parts(self) -> list[NDArray[Any]]:
        """The arrays that a fingerprint hashes: the bytes, and where each string ends."""
        return [self.data, self.offsets[1:]]

    def take(self, rows: NDArray[np.int64]) -> StringArray:
        return StringArray.from_strings(self[int(i)] for i in rows)
