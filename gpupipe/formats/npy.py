"""The header of .npy files.

NumPy's own parser reads it, which evaluates literals alone; nothing is unpickled.
"""

from __future__ import annotations

import io
import math
import tokenize
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

MOST_HEADER = 10_000
"""NumPy's own limit for files that are not trusted."""
DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip
"""Of arrays, as NumPy and torch call them."""
_LONGEST_START = 12
_PARTS = {"complex64": "float32", "complex128": "float64"}


@dataclass(frozen=True)
class Header:
    """dtype: NumPy's name. shape: of the array. offset: how many bytes stand before its numbers,
    which are in C order and of the machine's byte order.

    pairs: the numbers are complex. They are told as real ones, with a last axis of length 2: the
    real and the imaginary part, as in memory.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    pairs: bool = False

    @property
    def length(self) -> int:
        """Bytes of the numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def header(beginning: bytes) -> Header:
    """What a file says that begins so: give all of it, or as much as 10 KB.

    Raises ValueError where it cannot be taken as it is.
    """
    if not beginning.startswith(b"\x93NUMPY") or len(beginning) < _LONGEST_START:
        raise ValueError("no .npy file")
    wide = beginning[6] > 1
    end = (12 if wide else 10) + int.from_bytes(beginning[8 : 12 if wide else 10], "little")
    if end > min(len(beginning), MOST_HEADER):
        raise ValueError("a header that is cut off, or too long")
    if tuple(beginning[6:8]) not in ((1, 0), (2, 0)):
        raise ValueError(
            f"version {beginning[6]}.{beginning[7]} of .npy, which is for named fields: "
            "save plain numbers"
        )
    return _parsed(beginning[:end])


@lru_cache(maxsize=1024)
def _parsed(text: bytes) -> Header:
    """Of a whole header. Most files of a data set have the same."""
    stream = io.BytesIO(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about what stands in it, which is refused below or harmless
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
    return _taken(tuple(map(int, shape)), fortran, dtype, len(text))


def _taken(
    shape: tuple[int, ...], fortran: bool, dtype: np.dtype[np.generic], offset: int
) -> Header:
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
    return Header(
        _PARTS.get(dtype.name, dtype.name), (*shape, 2) if pairs else shape, offset, pairs
    )
