"""Reads a file of ids: the numbers of samples, one a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import DataError, counted, shown
from gpupipe.runtime.files import open_regular

_BOM = b"\xef\xbb\xbf"
_MAX_DIGITS = 18


def read_ids(file: Path, count: int) -> NDArray[np.int64]:
    """Read ids, one a line. Empty lines are left out.

    Args:
        file: The file.
        count: The number of samples; ids are 0 .. count - 1.

    Returns:
        The ids, ascending, int64 (n,), at least one.

    Raises:
        DataError: If the file cannot be read, a line is no id or one that came before, or there
            are no ids.
    """
    try:
        with open_regular(file) as stream:
            lines = stream.read().removeprefix(_BOM).splitlines()
    except OSError as e:
        raise DataError(
            f"{file}: cannot be read: {e.strerror or e}: set loader.subset to a share such as "
            "0.1, or to a file of ids, one a line"
        ) from e
    texts = [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise DataError(f"{file}: no ids in it: write the ids of samples, one a line")
    ids = np.array([_read_id(file, number, text, count) for number, text in texts], np.int64)
    order = np.argsort(ids, kind="stable")
    again = order[1:][np.diff(ids[order]) == 0]
    if len(again):
        number, text = texts[again.min()]
        raise DataError(
            f"{file}:{number}: id {text.decode()} came before: a sample is in a subset once; "
            "loader.repeats repeats all samples"
        )
    return ids[order]


def _read_id(file: Path, number: int, text: bytes, count: int) -> int:
    is_number = text.isdigit() and len(text) <= _MAX_DIGITS
    if is_number and int(text) < count:
        return int(text)
    rule = f"the ids of {counted(count, 'sample')} are 0 to {count - 1}, as in batch['id']"
    value = text.decode(errors="replace")
    raise DataError(f"{file}:{number}: {value if is_number else shown(value)} is no id: {rule}")
