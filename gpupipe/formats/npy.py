"""Parse the header of .npy files, and find the arrays in .npz files (ZIP archives of .npy files).

NumPy's parser reads the header. It evaluates only literals, and unpickles nothing.

numpy.savez stores arrays without compression, so each can be memory-mapped as a byte range of the
file. Compressed arrays (numpy.savez_compressed) are refused. `find_array` reads the whole array
once, to verify its CRC-32.
"""

import io
import math
import tokenize
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.formats import DamagedError, zip_directory
from gpupipe.formats.zip_directory import ZipMember

MAX_HEADER = 10_000
"""Upper limit of a header in bytes: NumPy's limit for untrusted files."""
DTYPES = tuple(
    "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)
"""Supported dtypes, by the names that NumPy and torch share."""
_LONGEST_START = 12
_PARTS = {"complex64": "float32", "complex128": "float64"}
_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (
    *(ValueError, TypeError, SyntaxError, tokenize.TokenError),
    *(KeyError, OverflowError, RecursionError, MemoryError),
)
"""NumPy raises these for headers that it cannot parse."""


@dataclass(frozen=True)
class NpyHeader:
    """The header of an array in C order and native byte order.

    Attributes:
        dtype: NumPy's name of the dtype.
        shape: The shape of the array.
        offset: The byte offset of the first number, from the start of the .npy file.
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
        ValueError: The bytes are not a .npy file, or gpupipe cannot read its numbers as stored.
    """
    if not prefix.startswith(b"\x93NUMPY") or len(prefix) < _LONGEST_START:
        raise ValueError("no .npy file")
    wide = prefix[6] > 1
    end = (12 if wide else 10) + int.from_bytes(prefix[8 : 12 if wide else 10], "little")
    if end > min(len(prefix), MAX_HEADER):
        raise ValueError("a header that is cut off, or too long")
    if tuple(prefix[6:8]) not in _READERS:
        raise ValueError(
            f"version {prefix[6]}.{prefix[7]} of .npy, which is for named fields: "
            "save plain numbers"
        )
    return _parse_whole_header(prefix[:end])


@lru_cache(maxsize=1024)
def _parse_whole_header(text: bytes) -> NpyHeader:
    """Parse a whole header. Cached: most files of a data set have the same header."""
    stream = io.BytesIO(text)
    try:
        with warnings.catch_warnings():
            # NumPy warns about headers that are rejected below, or harmless.
            warnings.simplefilter("ignore")
            version = np.lib.format.read_magic(stream)
            shape, fortran, dtype = _READERS[version](stream)
    except _UNREADABLE as e:
        raise ValueError(f"a header that cannot be read: {str(e)[:200]}") from e
    return _check_supported(tuple(map(int, shape)), fortran, dtype, len(text))


def _check_supported(
    shape: tuple[int, ...], fortran: bool, dtype: np.dtype[np.generic], offset: int
) -> NpyHeader:
    """Return the header of an array. Raises ValueError if gpupipe cannot read such an array."""
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


def find_array(data: NDArray[np.uint8], name: str) -> tuple[int, int]:
    """Return where an array's .npy file lies in a .npz file: its byte offset and size in bytes.

    Args:
        data: The bytes of the .npz file.
        name: The name of the array. Ignored if the file holds a single array.

    Raises:
        DamagedError: The file is not a ZIP, is truncated, or the array's CRC-32 is wrong.
        ValueError: There is no such array, or it is compressed.
    """
    members = list_arrays(data)
    member = next(iter(members.values())) if len(members) == 1 else members.get(name)
    if member is None:
        hint = did_you_mean(name, members) if members else ": it holds none"
        raise ValueError(f"no array '{name}'{hint}: name it under data.arrays")
    if member.is_deflated:
        raise ValueError(
            "compressed, so that it cannot be mapped into memory: write it with numpy.savez, as in "
            "numpy.savez(NEW, **numpy.load(OLD))"
        )
    start = zip_directory.locate(data, member)
    zip_directory.verify(data, member, start)
    return start, member.size


def list_arrays(data: NDArray[np.uint8]) -> dict[str, ZipMember]:
    """Return a dict from the name of each array in a .npz file to the array's .npy file.

    Raises DamagedError if the file is not a ZIP.
    """
    try:
        members = zip_directory.iter_members(data)
        return {member.name.removesuffix(".npy"): member for member in members}
    except ValueError as e:
        raise DamagedError(f"no .npz file: {e}") from e
