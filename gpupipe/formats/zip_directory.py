"""Find the members of ZIP archives, ZIP64 too, and inflate them.

Python's zipfile keeps an object for each member, 440 MB for a million, and raises half a dozen
kinds of exceptions for damaged archives. This parser takes the members from the central directory
at the end of the archive. It reads a member's local header only to find its content.
"""

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

_inflater: Any = zlib
with contextlib.suppress(ImportError):  # the extra `zip` has it: it inflates faster than zlib
    from isal import isal_zlib as _inflater

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s22xHH")
_MAX_COMMENT = 0xFFFF
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
"""Placeholders in fields whose actual number is in a ZIP64 record."""
_ENCRYPTED, _UTF8 = 0x2041, 0x800
"""Flag bits: encrypted (traditional, strong, or encrypted directory); name in UTF-8."""
_STORED, _DEFLATED = 0, 8
_METHODS = {
    1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "xz"
}  # fmt: skip
_MAX_RATIO = 1032
"""Max bytes of content per byte of a deflated stream."""


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A file in the directory of an archive.

    Attributes:
        name: Path in the archive.
        header: Byte offset of the member's local header in the file.
        raw_name: The name as stored, not decoded.
        stored_size: Size of the member's bytes in the archive, which may be compressed.
        size: Size of the uncompressed content in bytes.
        crc: CRC-32 of the content.
        method: ZIP's number of the compression method.
        flags: ZIP's flag bits, such as those of encryption.
    """

    name: str
    header: int
    raw_name: bytes
    stored_size: int
    size: int
    crc: int
    method: int
    flags: int

    @property
    def is_deflated(self) -> bool:
        return self.method == _DEFLATED


def iter_members(data: NDArray[np.uint8]) -> Iterator[ZipMember]:
    """Yield the files in the central directory, in the order of the directory. Skips folders.

    Raises:
        DamagedError: The archive is truncated or damaged, or the file is not a ZIP.
        ValueError: The file is one part of a split archive.
    """
    at, directory_end, count, shift = _find_directory(data)
    view, names = data.data, set[bytes]()
    for _ in range(count):
        if at + _ENTRY.size > directory_end:
            raise DamagedError(
                f"the directory ends at byte {directory_end:,}, before its last entry"
            )
        signature, _, _, flags, method, _, _, crc, stored_size, size, name_size, extra_size, \
            comment_size, disk, _, _, header = _ENTRY.unpack_from(view, at)  # fmt: skip
        end = at + _ENTRY.size + name_size + extra_size
        if signature != b"PK\1\2" or end + comment_size > directory_end:
            raise DamagedError(f"the directory is damaged at byte {at:,}")
        raw = bytes(view[at + _ENTRY.size : at + _ENTRY.size + name_size])
        if _FULL32 in (stored_size, size, header):
            extra = bytes(view[end - extra_size : end])
            size, stored_size, header = _read_extra64(extra, [size, stored_size, header], at)
        if disk not in (0, _FULL16):
            raise ValueError("a part of a split archive: write it as one file")
        at = end + comment_size
        if raw in names:
            raise DamagedError(
                f"two members are called {_decode(raw, flags)}: write the archive again, each once"
            )
        names.add(raw)
        if not raw.endswith(b"/"):
            header += shift
            name = _decode(raw, flags)
            yield ZipMember(name, header, raw, stored_size, size, crc, method, flags)


def check_name(data: NDArray[np.uint8], member: ZipMember) -> None:
    """Check a member's name. A damaged name could hide an image, since names choose the images.

    Raises:
        DamagedError: The archive's directory and the member's own header have different names.
        ValueError: The name is an absolute path, or leads out of the folder of the archive.
    """
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise ValueError(
            f"{member.name}: an archive has relative paths without '..': write it again from "
            "inside its folder"
        )
    if member.header + _LOCAL.size > len(data):
        raise DamagedError(f"cut off: {member.name} begins past the file's end")
    _, name_size, _ = _LOCAL.unpack_from(data.data, member.header)
    begin = member.header + _LOCAL.size
    raw = bytes(data.data[begin : begin + name_size])
    if raw != member.raw_name:
        raise DamagedError(f"{member.name} is not at byte {member.header:,}, as the directory says")


def locate(data: NDArray[np.uint8], member: ZipMember) -> int:
    """Return the byte offset of a member's stored bytes in the file.

    Raises:
        DamagedError: The member is not where the directory says, or its sizes are impossible.
        ValueError: The member is encrypted, or neither stored nor deflated.
    """
    name = member.name
    if member.flags & _ENCRYPTED:
        raise ValueError(f"{name}: encrypted: write the archive again without a password")
    if member.method not in (_STORED, _DEFLATED):
        method = _METHODS.get(member.method, f"method {member.method}")
        raise ValueError(
            f"{name}: compressed with {method}: only stored and deflated members are read, so "
            "write the archive again (zip -0 stores images, which compress no further)"
        )
    check_name(data, member)
    signature, name_size, extra_size = _LOCAL.unpack_from(data.data, member.header)
    if signature != b"PK\3\4":
        raise DamagedError(f"{name} is not at byte {member.header:,}, as the directory says")
    begin: int = member.header + _LOCAL.size + name_size + extra_size
    if begin + member.stored_size > len(data):
        raise DamagedError(f"cut off: {name} ends past the file's end")
    max_size = member.stored_size * (_MAX_RATIO if member.is_deflated else 1)
    if member.size > max_size or (not member.is_deflated and member.size != max_size):
        raise DamagedError(
            f"{name}: {member.stored_size:,} bytes are not {member.size:,} bytes of content"
        )
    return begin


def inflate(stored: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Return the content of a deflated member, uint8 (size,). Releases the GIL.

    Raises:
        DamagedError: The stream is damaged, or its content does not have `size` bytes.
    """
    stream = _inflater.decompressobj(-zlib.MAX_WBITS)
    try:
        content = stream.decompress(stored.data, size + 1)
    except _inflater.error as e:
        raise DamagedError(f"its compressed bytes are damaged: {e}") from e
    if len(content) != size:
        ends = "more" if len(content) > size else f"{len(content):,}"
        raise DamagedError(f"its compressed bytes are damaged: {ends} bytes, and not {size:,}")
    return np.frombuffer(content, np.uint8)


def check_crc(content: NDArray[np.uint8], crc: int) -> None:
    """Raise DamagedError if the CRC-32 of a member's content differs from `crc`."""
    if _inflater.crc32(content.data) != crc:
        raise DamagedError("damaged: its content has another CRC-32 than the archive says")


def verify(data: NDArray[np.uint8], member: ZipMember, begin: int) -> None:
    """Verify the content of a member. Raises DamagedError, with the member's name, if it is wrong.

    Args:
        data: The bytes of the archive.
        member: The member, with the size and CRC-32 of its content.
        begin: The byte offset of the member's stored bytes, as `locate` returns it.
    """
    content = data[begin : begin + member.stored_size]
    try:
        if member.is_deflated:
            content = inflate(content, member.size)
        check_crc(content, member.crc)
    except DamagedError as e:
        raise DamagedError(f"{member.name}: {e}") from e


def _find_directory(data: NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """Find the central directory by the archive's end record, or by its ZIP64 end record.

    Returns:
        The begin and end offset of the directory, the count of its entries, and the number of bytes
        that precede the archive in the file.
    """
    start = max(0, len(data) - _END.size - _MAX_COMMENT)
    tail = data[start:].tobytes()
    at = tail.rfind(b"PK\5\6")
    while at >= 0 and at + _END.size + int.from_bytes(tail[at + 20 : at + 22], "little") != len(
        tail
    ):
        at = tail.rfind(b"PK\5\6", 0, at)
    if at < 0:
        is_zip = data[:4].tobytes() == b"PK\3\4"
        raise DamagedError(
            "cut off: a ZIP ends in its directory" if is_zip else f"{len(data):,} bytes are no ZIP"
        )
    _, disk, first_disk, here, count, size, offset, _ = _END.unpack_from(tail, at)
    end = start + at
    end64 = _find_end64(data, end)
    if end64 is not None:
        end, (disk, first_disk, here, count, size, offset) = end64
    if disk or first_disk or here != count:
        raise ValueError("a part of a split archive: write it as one file")
    shift = end - size - offset
    if shift < 0 or count * _ENTRY.size > size:
        raise DamagedError(f"the directory of {size:,} bytes at byte {offset:,} is not in the file")
    return end - size, end, count, shift


def _find_end64(data: NDArray[np.uint8], end: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the byte offset and last six fields of the ZIP64 end record; None if there is none.

    Args:
        data: The bytes of the file.
        end: The byte offset of the archive's end record.
    """
    locator = end - _END64_LOCATOR.size
    if locator < 0 or data[locator : locator + 4].tobytes() != b"PK\6\7":
        return None
    _, _, offset, _ = _END64_LOCATOR.unpack_from(data.data, locator)
    for at in (locator - _END64.size, offset):  # the first also if something precedes the archive
        if 0 <= at <= len(data) - _END64.size and data[at : at + 4].tobytes() == b"PK\6\6":
            _, _, _, _, *numbers = _END64.unpack_from(data.data, at)
            return at, tuple(numbers)
    raise DamagedError(f"the ZIP64 record at byte {offset:,} is not there")


def _read_extra64(extra: bytes, numbers: list[int], at: int) -> list[int]:
    """Replace each number 0xFFFFFFFF of a directory entry by the number in its ZIP64 record.

    Args:
        extra: The extra fields of the entry, which contain the ZIP64 record.
        numbers: Size, stored size and header offset of the member.
        at: The byte offset of the entry, for messages.
    """
    offset = 0
    while offset + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, offset)
        record = extra[offset + 4 : offset + 4 + length]
        offset += 4 + length
        if kind == 1:
            larger = iter(struct.unpack(f"<{len(record) // 8}Q", record[: len(record) // 8 * 8]))
            filled = [next(larger, None) if n == _FULL32 else n for n in numbers]
            if None in filled:
                break
            return [n for n in filled if n is not None]
    if numbers[0] != _FULL32 and numbers[1] != _FULL32:
        return numbers
    raise DamagedError(f"the directory is damaged at byte {at:,}: a ZIP64 size is missing")


def _decode(raw: bytes, flags: int) -> str:
    """Decode a name. Without the UTF-8 flag, try UTF-8, then code page 437."""
    if flags & _UTF8 or raw.isascii():
        return os.fsdecode(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp437")
