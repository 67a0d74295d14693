"""Fuzzes the source of flat files: whatever the options and the files, samples lie inside their
files, one behind the other, or there is an error.

# seconds; with atheris, guided by coverage, where that is installed
python tests/fuzz/fuzz_raw.py 600
"""

import itertools
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import pydantic
from fuzzing import fuzz

from gpupipe.errors import DataError
from gpupipe.sources.raw import Raw

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-raw-"))
DTYPES = (
    "float32",
    "uint8",
    "int16",
    "float64",
    "bool",
    "complex64",
    "complex128",
    "uint64",
    "float33",
)
FORM = "<BBhhiihBHhHB"
"""dtype, axes, two lengths, offset, before, another length, the labels' dtype and offset, bytes
between labels, bytes of the file, of the labels.
"""
UNLABELLED = 255


def seeds() -> list[bytes]:
    """Options that fit their files, with labels and without."""
    found = []
    for number, dtype in enumerate(DTYPES[:-1]):
        for axes, count, offset, label in itertools.product(
            (1, 3), (1, 4), (0, 4), (1, UNLABELLED)
        ):
            before = offset // 4
            step = before + int(np.prod([3, 2, 2][:axes])) * np.dtype(dtype).itemsize
            told = (
                number,
                axes,
                3,
                2,
                offset,
                before,
                2,
                label,
                0,
                0,
                offset + count * step,
                count,
            )
            found.append(struct.pack(FORM, *told) + bytes(range(100)))
    return found


def one(data: bytes) -> bool:
    """Whether the source takes these options and files.

    Raises AssertionError where it should not have, or anything that is no error of its own.
    """
    length = struct.calcsize(FORM)
    told = struct.unpack(FORM, data[:length].ljust(length, b"\0"))
    dtype, axes, a, b, offset, before, c, label_dtype, label_offset, every, size, label_size = told
    content = (
        (data[length:] * (1 + size // max(1, len(data) - length)))[:size]
        if len(data) > length
        else bytes(size)
    )
    (FOLDER / "x.bin").write_bytes(content)
    (FOLDER / "y.bin").write_bytes(content[:label_size])
    labels = {
        "files": str(FOLDER / "y.bin"),
        "dtype": DTYPES[label_dtype % len(DTYPES)],
        "offset": label_offset,
    } | ({"every": every} if every else {})
    options = {
        "dtype": DTYPES[dtype % len(DTYPES)],
        "shape": [a, b, c][: axes % 5],
        "offset": offset,
        "before": before,
    }
    try:
        source = Raw.model_validate(
            {"files": str(FOLDER / "x.bin"), **options}
            | ({"labels": labels} if label_dtype < UNLABELLED else {})
        )
        index = source.index()
    except (DataError, pydantic.ValidationError):
        return False
    column = index.columns["array"]
    spans = [column.span(i) for i in range(len(index))]
    assert spans[0].offset == offset + before
    assert all(
        s.length == int(np.prod([*source.shape])) * np.dtype(source.dtype).itemsize for s in spans
    )
    assert all(
        second.offset - first.offset == before + first.length
        for first, second in itertools.pairwise(spans)
    )
    assert spans[-1].offset + spans[-1].length == len(content)
    assert column.array is not None
    assert (
        spans[0].read().view(column.array.dtype).reshape(column.array.shape_of(0)).nbytes
        == spans[0].length
    )
    assert index.labels.min() >= (0 if index.has_labels else -1)
    return True


if __name__ == "__main__":
    fuzz(one, seeds(), float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
