"""Errors of decoders that are called from Python: of the file, or of the machine."""

import struct

import pytest
from PIL import Image

from gpupipe.decoders.decoder import CannotDecodeError, find_blame, read_orientation
from gpupipe.errors import EngineError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("not enough data"), "not enough data"),
        (RuntimeError("Invalid SOS parameters"), "Invalid SOS parameters"),
        (ValueError(), "ValueError"),
        (CannotDecodeError("no image"), "no image"),
    ],
    ids=repr,
)
def test_a_damaged_file_cannot_be_decoded(error: Exception, message: str) -> None:
    found = find_blame(error)
    assert isinstance(found, CannotDecodeError)
    assert str(found) == message


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("std::bad_alloc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        OSError(24, "Too many open files"),
        MemoryError(),
        DeprecationWarning("of the library"),
        EngineError("the library is of another torch"),
    ],
    ids=repr,
)
def test_no_file_is_blamed_for_the_machine(error: Exception) -> None:
    assert find_blame(error) is error


def by_pillow(orientation: int) -> bytes:
    """EXIF data as Pillow writes it, without the words before the TIFF header."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


def tags(*entries: tuple[int, int, int, int], order: str = "<") -> bytes:
    """A TIFF header with these tags: number, type, count and value."""
    header = {"<": b"II*\0", ">": b"MM\0*"}[order]
    body = b"".join(struct.pack(order + "HHIHH", *entry, 0) for entry in entries)
    return header + struct.pack(order + "IH", 8, len(entries)) + body


def test_every_orientation_that_pillow_writes() -> None:
    for orientation in range(1, 9):
        assert read_orientation(memoryview(by_pillow(orientation))) == orientation


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: str) -> None:
    assert read_orientation(memoryview(tags((0x0112, 3, 1, 6), order=order))) == 6


def test_without_the_tag_it_is_1() -> None:
    assert read_orientation(memoryview(tags((0x0100, 3, 1, 6)))) == 1
    assert read_orientation(memoryview(tags())) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"II*\0",
        b"XX*\0" + tags((0x0112, 3, 1, 6))[4:],
        tags((0x0112, 3, 1, 9)),
        tags((0x0112, 3, 1, 0)),
        tags((0x0112, 4, 1, 6)),
        tags((0x0112, 3, 2, 6)),
        tags((0x0112, 3, 1, 6), (0x0112, 3, 1, 6)),
        tags((0x0112, 3, 1, 6))[:-1],
        tags(*[(0x0100, 3, 1, 6)] * 201),
        b"II*\0" + struct.pack("<I", 4) + tags((0x0112, 3, 1, 6))[8:],
    ],
    ids=[
        "empty",
        "no offset",
        "no byte order",
        "9",
        "0",
        "a long",
        "two values",
        "twice",
        "cut off",
        "201 tags",
        "tags in the header",
    ],
)
def test_what_is_unusual_is_none(data: bytes) -> None:
    assert read_orientation(memoryview(data)) is None
