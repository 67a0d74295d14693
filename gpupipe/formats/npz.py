"""Find the arrays of .npz files, which are ZIP archives of .npy files.

numpy.savez stores them without compression, so each is a byte range of the file. Those of
numpy.savez_compressed are refused: they have no bytes that can be mapped. An array is read once
when it is found, to verify the CRC-32 that ZIP keeps of it.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import did_you_mean
from gpupipe.formats import Damaged
from gpupipe.formats.zip_directory import ZipMember, iter_members, locate


def find_array(data: NDArray[np.uint8], name: str) -> tuple[int, int]:
    """Return where the .npy file of an array begins in a .npz file, and its size in bytes.

    Args:
        data: All bytes of the .npz file.
        name: The name of the array; if the file holds a single array, that one is taken.

    Raises:
        ValueError: There is no such array, or it is compressed; Damaged if the file is no ZIP, or
            the array's bytes are not those that were written.
    """
    members = _read_directory(data)
    member = next(iter(members.values())) if len(members) == 1 else members.get(name)
    if member is None:
        hint = did_you_mean(name, members) if members else ": it holds none"
        raise ValueError(f"no array '{name}'{hint}: name it under data.arrays")
    if member.is_deflated:
        raise ValueError(
            "compressed, so that it cannot be mapped into memory: write it with numpy.savez, as in "
            "numpy.savez(NEW, **numpy.load(OLD))"
        )
    start = locate(data, member)
    if zlib.crc32(data[start : start + member.size].data) != member.crc:
        raise Damaged(f"damaged: the bytes of the array '{member.name}' do not have its CRC-32")
    return start, member.size


def list_arrays(data: NDArray[np.uint8]) -> list[str]:
    """Return the names of the arrays of a .npz file. Raises Damaged if the file is no ZIP."""
    return list(_read_directory(data))


def _read_directory(data: NDArray[np.uint8]) -> dict[str, ZipMember]:
    try:
        return {member.name.removesuffix(".npy"): member for member in iter_members(data)}
    except ValueError as e:
        raise Damaged(f"no .npz file: {e}") from e
