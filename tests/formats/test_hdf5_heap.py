import struct
from typing import Any

import numpy as np
import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.hdf5_heap import REFERENCE, locate_rows

HEAP = b"GCOL\x01\0\0\0" + struct.pack("<Q", 80)
HEAP += struct.pack("<HHIQ", 1, 0, 0, 5) + b"hello\0\0\0"
HEAP += struct.pack("<HHIQ", 2, 0, 0, 8) + b"goodbye!"
HEAP += struct.pack("<HHIQ", 0, 0, 0, 16)
FILE = np.frombuffer(b"x" * 100 + HEAP, np.uint8)


def find(*references: tuple[int, int, int], base: int = 100) -> Any:
    return locate_rows(FILE, np.array(list(references), REFERENCE), 1, base)


def test_rows_are_found_and_rows_that_were_never_written_are_empty() -> None:
    offset, length = find((8, 0, 2), (0, 0, 0), (4, 0, 1))
    rows = [FILE[o : o + n].tobytes() for o, n in zip(offset, length, strict=True)]
    assert rows == [b"goodbye!", b"", b"hell"]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ((4, 8, 1), "byte 108, where there is no heap"),
        ((4, 1 << 60, 1), "there is no heap"),
        ((4, 0, 3), "row 1 refers to an object that is not in the heap"),
        ((6, 0, 1), "row 1 is longer than its object"),
    ],
)
def test_references_that_lead_nowhere(reference: tuple[int, int, int], message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        find((8, 0, 2), reference)
