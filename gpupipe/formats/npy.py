"""Parse the header of .npy files, and find the arrays of .npz files, ZIP archives of .npy files.

NumPy's parser reads the header. It evaluates only literals, and unpickles nothing.

numpy.savez stores arrays without compression, so each can be memory-mapped as a byte range of the
file. Compressed arrays (numpy.savez_compressed) are refused. `find_array` reads the whole array
once, to verify its CRC-32.
"""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

import numpy as np

from gpupipe.errors import did_you_mean
from gpupipe.formats import DamagedError

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
    if tuple(prefix[6:8]) not in ((1, 0), (2, 0)):
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


_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""A ZIP local file header: its signature, and the lengths of the name and the extra field."""
_ENCRYPTED = 1
_PIECE_BYTES = 1 << 20


def find_array(file: BinaryIO, name: str) -> tuple[int, int]:
    """Return the byte offset of an array's .npy file in a .npz file, and its size in bytes.

    Args:
        file: The .npz file, open for reading.
        name: The name of the array. Ignored if the file holds a single array.

    Raises:
        OSError: The file cannot be read.
        DamagedError: The file is not a ZIP, is truncated, or the array's CRC-32 is wrong.
        ValueError: There is no such array, or it is compressed.
    """
    info = _choose(_read_directory(file), name)
    start, size = _locate(file, info)
    if _compute_crc(file, start, size) != info.CRC:
        raise DamagedError(
            f"damaged: the bytes of the array '{info.filename}' do not have its CRC-32"
        )
    return start, size


def list_arrays(file: BinaryIO) -> list[str]:
    """Return the names of the arrays of a .npz file.

    Raises:
        OSError: The file cannot be read.
        DamagedError: The file is not a ZIP.
    """
    return list(_read_directory(file))


def _read_directory(file: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(file) as archive:
            return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        struct.error,
        IndexError,
        OverflowError,
        EOFError,
    ) as e:
        raise DamagedError(f"no .npz file: {e}") from e


def _choose(members: Mapping[str, zipfile.ZipInfo], name: str) -> zipfile.ZipInfo:
    info = next(iter(members.values())) if len(members) == 1 else members.get(name)
    if info is None:
        hint = did_you_mean(name, members) if members else ": it holds none"
        raise ValueError(f"no array '{name}'{hint}: name it under data.arrays")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _ENCRYPTED:
        raise ValueError(
            "compressed, so that it cannot be mapped into memory: write it with numpy.savez, as in "
            "numpy.savez(NEW, **numpy.load(OLD))"
        )
    return info


def _locate(file: BinaryIO, info: zipfile.ZipInfo) -> tuple[int, int]:
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise DamagedError(f"no array begins at byte {info.header_offset:,}, as its directory says")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + info.file_size > file.seek(0, os.SEEK_END):
        raise DamagedError(f"cut off: the array '{info.filename}' ends past the file's end")
    return start, info.file_size


def _compute_crc(file: BinaryIO, start: int, size: int) -> int:
    file.seek(start)
    crc, end = 0, start + size
    while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
        crc, start = zlib.crc32(piece, crc), start + len(piece)
    return crc
