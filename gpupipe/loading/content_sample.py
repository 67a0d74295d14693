"""Sizes and hashes of some samples, by which a loader checks that a state belongs to its data.

Names and labels can be equal although the files differ, such as after images are prepared again at
another size or quality. So a state holds the sizes of up to 1,000 rows, and hashes of the first
64 KiB of up to 32 of them. The choice of rows depends only on the index's fingerprint, so every
rank and every later run checks the same rows. Modification times do not count, because cp, git and
rsync change them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index

_MAX_ROWS, _MAX_HASHES = 1000, 32
_HEAD_BYTES = 1 << 16

Cell = tuple[str, int]
"""The name of a field, and a row of the index."""


def sample_content(index: Index) -> dict[str, Any]:
    """Return the sizes and hashes of some rows, as plain JSON.

    A row that is missing or cannot be read has None. The function downloads nothing: rows of a
    remote data set have the sizes of its listing, and no hashes, so that ranks with different
    caches agree. It also reads no column in which a read decodes a whole row group. If a column
    stores no sizes, only the hashed rows have sizes.

    Returns:
        {"sizes": [bytes, ...], "hashes": [hexadecimal, ...]}, a few kB.
    """
    cells = _choose_cells(index)
    sizes = _get_sizes(index, cells)
    hashes: list[str | None] = []
    for n in _iterate_hashed(len(cells)):
        field, row = cells[n]
        size, digest = _hash_head(index.columns[field], row)
        hashes.append(digest)
        if sizes[n] is None:
            sizes[n] = size
    return {"sizes": sizes, "hashes": hashes}


def find_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], index: Index) -> str:
    """Describe how the data has changed since a state was saved; "" if it has not.

    Args:
        theirs: The sizes and hashes in the state, from `sample_content`.
        ours: The sizes and hashes of the current data, from `sample_content`.
        index: The index of the data.
    """
    cells = _choose_cells(index)
    hashed = [cells[n] for n in _iterate_hashed(len(cells))]
    sizes = _list_differences(theirs.get("sizes"), ours["sizes"], cells)
    hashes = _list_differences(theirs.get("hashes"), ours["hashes"], hashed)
    if sizes:
        (field, row), then, now = sizes[0]
        difference = f"{index.location(row, field)} had {then:,} bytes, and has {now:,} now"
    elif hashes:
        (field, row), _, _ = hashes[0]
        difference = f"{index.location(row, field)} has the size that it had, but other content"
    else:
        return ""
    checked = len(cells) if sizes else len(hashed)
    return (
        f"{difference}; of {checked:,} samples that were compared, {len(sizes or hashes):,} differ"
    )


def _list_differences(
    theirs: Any, ours: list[Any], cells: list[Cell]
) -> list[tuple[Cell, Any, Any]]:
    """Return (cell, their value, our value) of each cell whose two values are known and differ."""
    if not isinstance(theirs, list) or len(theirs) != len(ours):
        return []
    return [
        (cell, then, now)
        for cell, then, now in zip(cells, theirs, ours, strict=True)
        if type(then) is type(now) and then != now
    ]


def _choose_cells(index: Index) -> list[Cell]:
    """Choose up to 1,000 rows by the index's fingerprint, and one field of each in rotation."""
    rows: Any = range(len(index))
    if len(index) > _MAX_ROWS:
        bits = hashlib.shake_256(index.fingerprint.encode()).digest(8 * _MAX_ROWS)
        rows = np.unique(np.frombuffer(bits, "<u8") % np.uint64(len(index))).tolist()
    fields = list(index.columns)
    return [(fields[n % len(fields)], row) for n, row in enumerate(rows)]


def _iterate_hashed(count: int) -> Iterator[int]:
    """Yield the positions of up to 32 of `count` cells, at equal distances: these are hashed."""
    return iter(range(0, count, max(1, -(-count // _MAX_HASHES))))


def _get_sizes(index: Index, cells: list[Cell]) -> list[int | None]:
    sizes: list[int | None] = [None] * len(cells)
    for field, column in index.columns.items():
        positions = [n for n, cell in enumerate(cells) if cell[0] == field]
        rows = np.array([cells[n][1] for n in positions], np.int64)
        for n, size in zip(positions, column.get_sizes(rows), strict=True):
            sizes[n] = size
    return sizes


def _hash_head(column: Column, row: int) -> tuple[int | None, str | None]:
    """Return the size of a row and the hash of its first 64 KiB; None and None if unknown."""
    with suppress(Exception):  # of any plugin: the engine reports the row when it reads it
        if column.can_sample:
            head, _, size = column.read_ends(row, _HEAD_BYTES, 0)
            return size, hashlib.blake2b(head, digest_size=8).hexdigest()
    return None, None
