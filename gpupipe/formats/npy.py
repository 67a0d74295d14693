"""Parse the header of .npy files.

NumPy's parser reads the header. It evaluates only literals, and unpickles nothing.
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MAX_HEADER = 10_000
"""Upper limit of a header in bytes: NumPy's limit for untrusted files."""
DTYPES = tuple(
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)
"""Supported dtypes, by the names that NumPy and torch share."""
_LONGEST_START = 12
_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class NpyHeader:
    """The header of an array in C order and native byte order.

    Attributes:
        dtype: NumPy's name of the dtype.
        shape: The shape of the array.
        offset: The byte at which the numbers begin.
        pairs: Whether the numbers are complex. If so, `dtype` and `shape` describe them as real
            numbers with a last axis of length 2: the real and the imaginary part, as in memory.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    pairs: bool = False

    @property
    def length(self) -> int:
        """The size of the numbers in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def parse_header(prefix: bytes) -> NpyHeader:
    """Parse the header of a .npy file.

    Args:
        prefix: The whole file, or at least its first 10 kB (`MAX_HEADER`).

    Raises:
        ValueError: This is no .npy file, or gpupipe cannot read its numbers as they are stored.
    """
    if not prefix.startswith(b"\x93NUMPY") or len(prefix) < _LONGEST_START:
        raise ValueError("no .npy file")
    wide = prefix[6] > 1
    end = (12 if wide else 10) + int.from_bytes(prefix[8 : 12 if wide else 10], "little")
    if end > min(len(prefix), MAX_HEADER):
        raise ValueError("a header that is cut off, or too long")
    if tuple(prefix[6:8]) not in ((1, 0), (2, 0)):
        raise ValueError(
            f"version {prefix[6]}.{prefix[7]} of .npy, which is for named fields: "
            "save plain numbers"
        )
    return _parsed(prefix[:end])


@lru_cache(maxsize=1024)
def _parsed(text: bytes) -> NpyHeader:
    """Parse a whole header. Cached: most files of a data set have the same header."""
    stream = io.BytesIO(text)
    try:
        with warnings.catch_warnings():
            # NumPy warns about headers that are rejected below, or harmless.
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(stream)
    except (
        ValueError,
        TypeError,
        SyntaxError,
        tokenize.TokenError,
        KeyError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as e:
        raise ValueError(f"a header that cannot be read: {str(e)[:200]}") from e
    return _check_supported(tuple(map(int, shape)), fortran, dtype, len(text))


def _check_supported(
    shape: tuple[int, ...], fortran: bool, dtype: np.dtype[np.generic], offset: int
) -> NpyHeader:
    """Return the header of an array. Raises ValueError if gpupipe cannot read it as stored."""
    if dtype.name not in (*DTYPES, *_PARTS) or dtype.names or dtype.subdtype:
        raise ValueError(
            f"an array of {dtype}: save it as numbers, np.asarray(a, 'float32') for "
            "instance (objects are never unpickled)"
        )
    if not dtype.isnative:
        raise ValueError(
            f"big-endian numbers ({dtype.str}): save it as a.astype(a.dtype.newbyteorder('='))"
        )
    if fortran and sum(n > 1 for n in shape) > 1:
        raise ValueError("an array in Fortran order: save it as np.ascontiguousarray(a)")
    if any(n < 0 for n in shape):
        raise ValueError(f"the shape {shape}, which no array has")
    pairs = dtype.name in _PARTS
    return NpyHeader(
        _PARTS.get(dtype.name, dtype.name), (*shape, 2) if pairs else shape, offset, pairs
    )
