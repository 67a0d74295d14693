"""Find the arrays of .npz files, which are ZIP archives of .npy files.

numpy.savez stores them without compression, so each is a byte range of the file. Those of
numpy.savez_compressed are refused: they have no bytes that can be mapped. An array is read once
when it is found, to verify the CRC-32 that ZIP keeps of it.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import BinaryIO

from gpupipe.errors import did_you_mean
from gpupipe.formats import Damaged

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Of a local file header: the signature, and the lengths of the name and of the extra field."""
_ENCRYPTED = 1
_PIECE_BYTES = 1 << 20


def find_array(file: BinaryIO, name: str) -> tuple[int, int]:
    """Return where the .npy file of an array begins in a .npz file, and its size in bytes.

    Args:
        file: The .npz file, open for reading.
        name: The name of the array; if the file holds a single array, that one is taken.

    Raises:
        OSError: The file cannot be read.
        ValueError: There is no such array, or it is compressed; Damaged if the file is no ZIP, or
            the array's bytes are not those that were written.
    """
    info = _choose(_read_directory(file), name)
    start, size = _locate(file, info)
    if _compute_crc(file, start, size) != info.CRC:
        raise Damaged(f"damaged: the bytes of the array '{info.filename}' do not have its CRC-32")
    return start, size


def list_arrays(file: BinaryIO) -> list[str]:
    """Return the names of the arrays of a .npz file.

    Raises:
        OSError: The file cannot be read.
        Damaged: The file is no ZIP.
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
        raise Damaged(f"no .npz file: {e}") from e


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
        raise Damaged(f"no array begins at byte {info.header_offset:,}, as its directory says")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + info.file_size > file.seek(0, os.SEEK_END):
        raise Damaged(f"cut off: the array '{info.filename}' ends past the file's end")
    return start, info.file_size


def _compute_crc(file: BinaryIO, start: int, size: int) -> int:
    file.seek(start)
    crc, end = 0, start + size
    while start < end and (piece := file.read(min(_PIECE_BYTES, end - start))):
        crc, start = zlib.crc32(piece, crc), start + len(piece)
    return crc
