"""Find the bytes of ragged rows (variable-length data) in an HDF5 file.

A ragged row is a reference to an object in a global heap collection. The formats are in the HDF5
File Format Specification, III.E ("Global Heap") and VIII.B:

    reference    uint32 count | address of a collection | uint32 number of the object
    collection   "GCOL" | version 1 | 3 bytes | size of the collection | objects ...
    object       uint16 number | uint16 | 4 bytes | size of the content | content, padded to 8 bytes

Addresses and sizes have 8 bytes here, as libhdf5 writes them by default.
"""

import struct
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

REFERENCE = np.dtype([("count", "<u4"), ("address", "<u8"), ("object", "<u4")])
"""The bytes of a ragged row in its dataset."""
_SIGNATURE = b"GCOL\x01"
_HEADER = 16
_OBJECT = struct.Struct("<HH4xQ")


def locate_rows(
    data: NDArray[np.uint8], references: NDArray[np.void], itemsize: int, base: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the content of ragged rows.

    Args:
        data: The bytes of the file.
        references: The references of the N rows, REFERENCE (N,).
        itemsize: The size of a number in bytes.
        base: The offset in the file that addresses count from.

    Returns:
        The first byte of each row, int64 (N,).
        The number of bytes of each row, int64 (N,); 0 for a row that was never written.

    Raises:
        DamagedError: A reference leads nowhere.
    """
    length = references["count"].astype(np.int64) * itemsize
    offset = np.zeros(len(references), np.int64)
    wanted: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    addresses, objects = references["address"].tolist(), references["object"].tolist()
    for row in np.flatnonzero(length).tolist():
        wanted[addresses[row]][objects[row]].append(row)
    for address, rows_of in wanted.items():
        _locate_objects(data, address + base, rows_of, offset, length)
    return offset, length


def _locate_objects(
    data: NDArray[np.uint8],
    begin: int,
    rows_of: dict[int, list[int]],
    offset: NDArray[np.int64],
    length: NDArray[np.int64],
) -> None:
    """Set the offsets of the rows whose content is in the collection that begins at `begin`.

    `rows_of` maps the number of each object to its rows, and is emptied.
    """
    if data[begin : begin + len(_SIGNATURE)].tobytes() != _SIGNATURE:
        raise DamagedError(f"ragged rows refer to byte {begin:,}, where there is no heap")
    size = int.from_bytes(data[begin + 8 : begin + _HEADER].tobytes(), "little")
    end = min(begin + size, len(data))
    position = begin + _HEADER
    while rows_of and position + _OBJECT.size <= end:
        number, _, content = _OBJECT.unpack(data[position : position + _OBJECT.size].tobytes())
        position += _OBJECT.size
        if number == 0:
            break
        for row in rows_of.pop(number, ()):
            if length[row] > content or position + content > end:
                raise DamagedError(f"row {row} is longer than its object in the heap")
            offset[row] = position
        position += content + -content % 8
    if rows_of:
        row = min(row for rows in rows_of.values() for row in rows)
        raise DamagedError(f"row {row} refers to an object that is not in the heap")
