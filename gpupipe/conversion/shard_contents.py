"""What a shard should hold, and how that differs from what was read back from it."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpupipe.conversion.samples import ConvertedSample
from gpupipe.formats.list_values import ListValues


class ContentWriter(Protocol):
    """Writes one shard."""

    def add(self, sample: ConvertedSample) -> None:
        """Write a sample. Raises OSError if that fails."""

    def close(self) -> None:
        """Write the end of the shard, and wait until the disk has it. Raises OSError."""

    def abort(self) -> None:
        """Close the file without an end."""


class StoredShard(NamedTuple):
    """What was read back from a shard of N samples.

    Attributes:
        digests: The SHA-256 of the bytes of each file, or of the numbers of each array, by field.
        labels: The labels, (N,); None if there are none.
        values: The numbers of each value, (N,) or (N, n).
        lists: The lists of each field of annotations.
    """

    digests: dict[str, list[bytes]]
    labels: list[int] | None
    values: dict[str, NDArray[Any]]
    lists: dict[str, ListValues]


@dataclass
class ShardContents:
    """What a shard should hold.

    Attributes:
        rows: The row of each sample in the index of the source.
        digests: The SHA-256 of each file or array, by field, as in StoredShard.
        endings: The kinds of files of each field.
        labels: The label of each sample; None if it has none.
        values: The numbers of each value, a list with an element for each sample.
        lists: The same for the items of each list.
        source_bytes: The bytes of the fields in the source.
        changes: How many files were changed, by the kind of the change, as in ConvertedSample.
    """

    rows: list[int] = field(default_factory=list)
    digests: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    endings: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    labels: list[int | None] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    lists: dict[str, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    source_bytes: int = 0
    changes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, sample: ConvertedSample) -> None:
        self.rows.append(sample.row)
        for name, content in sample.contents.items():
            numbers = memoryview(content.data)[len(content.data) - content.numbers :]
            self.digests[name].append(hashlib.sha256(numbers).digest())
            self.endings[name].add(content.kind)
        self.labels.append(sample.label)
        for name, value in sample.values.items():
            self.values[name].append(value)
        for name, items in sample.lists.items():
            self.lists[name].append(items)
        self.source_bytes += sample.source_bytes
        for kind, number in sample.changes.items():
            self.changes[kind] += number

    def compute_digest(self) -> str:
        """Return one hash of all files and arrays, in order, in hexadecimal."""
        digest = hashlib.sha256()
        for name, digests in self.digests.items():
            digest.update(name.encode() + b"\0" + b"".join(digests))
        return digest.hexdigest()

    def explain_difference(self, stored: StoredShard) -> str:
        """Return how a shard that was read back differs from this; "" if it does not."""
        return next(self._iterate_differences(stored), "")

    def _iterate_differences(self, stored: StoredShard) -> Iterator[str]:
        for name, digests in self.digests.items():
            others = stored.digests[name]
            if len(others) != len(digests):
                yield f"it holds {len(others):,} of '{name}' in place of {len(digests):,}"
            for row, mine, other in zip(self.rows, digests, others, strict=False):
                if mine != other:
                    yield f"'{name}' of sample {row} has other bytes than were written"
        labels = [label for label in self.labels if label is not None]
        if labels != (stored.labels or []):
            yield "its labels are not those that were written"
        for name, values in self.values.items():
            if not _are_equal(values, stored.values[name]):
                yield f"'{name}' has other numbers than were written"
        for name, lists in self.lists.items():
            found = stored.lists[name]
            counts, items = [*map(len, lists)], list(chain.from_iterable(lists))
            if found.faults or counts != found.counts.tolist():
                yield f"'{name}' has other lists than were written"
            if items and not _are_equal(items, np.asarray(found.values)):
                yield f"'{name}' has other numbers than were written"


def _are_equal(expected: Sequence[Any], found: NDArray[Any]) -> bool:
    return np.array_equal(np.array(expected), found, equal_nan=found.dtype.kind == "f")
