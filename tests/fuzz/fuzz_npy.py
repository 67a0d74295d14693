"""Fuzzes the source of .npy files: what it takes, NumPy reads the same; what it does not take is
one of its own errors.

# seconds; with atheris, guided by coverage, where that is installed
python tests/fuzz/fuzz_npy.py 600
"""

import io
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from fuzzing import fuzz

from gpupipe.errors import DataError
from gpupipe.formats import npy
from gpupipe.sources.numpy import Numpy

FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-npy-"))
FILE = FOLDER / "x.npy"


def seeds() -> list[bytes]:
    """Files of many dtypes, shapes, orders and versions, also those that are refused."""
    arrays = [
        np.zeros(shape, dtype)
        for dtype in [
            "f2",
            "f4",
            "f8",
            "i1",
            "i2",
            "i8",
            "u1",
            "u2",
            "u4",
            "u8",
            "?",
            "c8",
            "c16",
            ">f4",
            "S3",
            "U2",
            "M8[s]",
        ]
        for shape in ((), (3,), (2, 3), (0, 2))
    ]
    arrays += [np.asfortranarray(np.ones((2, 3), "f4")), np.zeros(2, [("a", "f4"), ("b", "i2")])]
    return [_saved(array, version) for array in arrays for version in ((1, 0), (2, 0), None)]


def _saved(array: np.ndarray, version: tuple[int, int] | None) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=False)
    return stream.getvalue()


def one(data: bytes) -> bool:
    """Whether the source takes a file with this content.

    Raises AssertionError where it should not have, or anything that is no error of its own.
    """
    try:
        npy.parse_header(data[: npy.MAX_HEADER])
    except ValueError:
        return False
    FILE.write_bytes(data)
    rows = bool(data) and data[-1] % 2 == 1
    source = Numpy(files=str(FILE), rows=rows)
    try:
        parts = source.read(str(FILE))
    except (ValueError, OSError):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.load(io.BytesIO(data), allow_pickle=False)
    found = np.frombuffer(data, parts.dtype, offset=parts.offset)
    shape = parts.shape if parts.count is None else (parts.count, *parts.shape)
    assert np.array_equal(
        found.reshape(shape).view(expected.dtype).reshape(expected.shape),
        expected,
        equal_nan=expected.dtype.kind in "fc",
    )
    try:
        index = source.index()
    except DataError:
        return False
    span = index.columns[index.main].span(0)
    assert span.offset + (span.length or 0) <= len(data)
    assert source.specs()["array"].dtype == parts.dtype
    return True


if __name__ == "__main__":
    fuzz(one, seeds(), float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
