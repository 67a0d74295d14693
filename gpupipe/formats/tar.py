"""Find the members of uncompressed tar files: ustar, GNU (long names) and pax.

Python's tarfile takes at least three times as long (benchmarks/formats.py), and in many versions of
Python it loops forever on a header with a negative size (CVE-2025-8194). This parser only moves
forwards, and accepts only plain files and folders.
"""

import os
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

_BLOCK = 512
EMPTY_BYTES = 20 * _BLOCK
"""Maximum size of a tar without members: GNU tar and Python write so many zeros."""
_FILE = (b"0", b"\0", b"7")
_FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL = b"5", b"L", b"K", b"x", b"g"
_MAX_EXTENDED = 1 << 20
"""Upper limit of a long name or a pax header, in bytes."""
_ZEROS = bytes(_BLOCK)


class Member(NamedTuple):
    """A plain file in a tar.

    Attributes:
        name: Path in the tar.
        offset: Byte offset of the content in the tar.
        size: Size of the content in bytes.
    """

    name: str
    offset: int
    size: int


def iter_members(data: NDArray[np.uint8]) -> Iterator[Member]:
    """Yield the plain files of a tar, in the order of the tar. Skips folders.

    Raises:
        DamagedError: The tar is truncated or damaged, or the file is not a tar.
        ValueError: A member is neither a plain file nor a folder, or its name is unsafe, such as an
            absolute path.
    """
    # `extended` holds the name and size that an extended header sets for the next member.
    view, offset, extended = data.data, 0, dict[str, str]()
    while (head := bytes(view[offset : offset + _BLOCK])) != _ZEROS:
        _check_head(head, offset, len(data))
        kind, size = head[156:157], _read_size(head, extended, offset)
        content = offset + _BLOCK
        offset = content + size + -size % _BLOCK
        if content + size > len(data):
            raise DamagedError(
                f"cut off: the member at byte {content - _BLOCK:,} ends "
                f"{content + size - len(data):,} bytes past the file's end"
            )
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL):
            extended |= _parse_extended(
                kind, bytes(view[content : content + min(size, _MAX_EXTENDED + 1)]), content
            )
            continue
        name, extended = extended["path"] if "path" in extended else _read_name(head), {}
        # Before POSIX.1-1988, only a slash at the end of the name marked a folder.
        if kind != _FOLDER and not (kind == b"\0" and name.endswith("/")):
            _check_member(name, kind)
            yield Member(name, content, size)
    if extended or data[offset:].any():
        raise DamagedError(
            f"bytes past the tar's end at byte {offset:,}: tar files that were joined must "
            "be written as one"
        )


def _check_head(head: bytes, offset: int, size: int) -> None:
    if len(head) < _BLOCK:
        raise DamagedError(
            f"cut off at byte {size:,}: a tar ends in a block of zeros"
            if offset
            else f"{size:,} bytes are no tar"
        )
    stored, summed = _parse_octal(head[148:156]), head[:148] + b" " * 8 + head[156:]
    total = _sum_bytes(summed[:256]) + _sum_bytes(summed[256:])
    # Some old writers summed signed bytes.
    if stored != total and stored != total - 256 * sum(b > 127 for b in summed):
        raise DamagedError(
            f"the checksum of the header at byte {offset:,} is wrong: the file is damaged, "
            "or no uncompressed tar"
        )


def _sum_bytes(data: bytes) -> int:
    """Return the sum of up to 256 bytes, in a tenth of the time of `sum`.

    The lower half of Adler-32 is 1 + the sum, modulo 65521, which is more than 256 bytes can have.
    """
    return (zlib.adler32(data) & 0xFFFF) - 1


def _read_size(head: bytes, extended: dict[str, str], offset: int) -> int:
    """Return a member's size in bytes. Raises DamagedError if the stored size is no number."""
    if "size" in extended and head[156:157] not in (_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK):
        text = extended["size"]
        size = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
    else:
        field = head[124:136]
        size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _parse_octal(field)
    if size is None:
        raise DamagedError(f"the size in the header at byte {offset:,} is no number")
    return size


def _parse_octal(field: bytes) -> int | None:
    """Parse an octal number, padded with spaces or NUL; return None if the field is not valid."""
    text, _, rest = field.partition(b"\0")
    digits = text.strip(b" ") or b"0"
    return None if digits.strip(b"01234567") or rest.strip(b" \0") else int(digits, 8)


def _read_name(head: bytes) -> str:
    name = head[:100].partition(b"\0")[0]
    if head[345] and head[257:263] == b"ustar\0":
        name = head[345:500].partition(b"\0")[0] + b"/" + name
    return os.fsdecode(name)


def _parse_extended(kind: bytes, content: bytes, offset: int) -> dict[str, str]:
    """Return the "path" and "size" that an extended header sets for the next member."""
    if len(content) > _MAX_EXTENDED:
        raise DamagedError(f"a header of more than {_MAX_EXTENDED:,} bytes at byte {offset:,}")
    if kind in (_LONG_NAME, _LONG_LINK):
        return {"path": os.fsdecode(content.partition(b"\0")[0])} if kind == _LONG_NAME else {}
    records = dict(_iter_records(content, offset))
    sparse = next((key for key in records if key.startswith("GNU.sparse")), None)
    if sparse:
        raise ValueError(f"a sparse file after byte {offset:,}: write it without holes")
    wanted = {key: value for key, value in records.items() if key in ("path", "size")}
    if wanted and kind == _PAX_OF_ALL:
        raise DamagedError(
            f"a header at byte {offset:,} that gives all members the same {' and '.join(wanted)}"
        )
    return wanted


def _iter_records(content: bytes, offset: int) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of each record of a pax extended header.

    A record is "LENGTH KEY=VALUE\\n". LENGTH is the size of the whole record in bytes.

    Args:
        content: The records.
        offset: The byte of the archive at which the header begins, for error messages.

    Raises:
        DamagedError: A record is malformed.
    """
    at = 0
    while at < len(content) and content[at]:
        digits = content[at : at + 8].partition(b" ")[0]
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = content[at + len(digits) + 1 : end - 1].partition(b"=")
        is_inside = at + len(digits) < end <= len(content)
        if not is_inside or content[end - 1] != ord("\n") or not equals:
            raise DamagedError(f"a pax header at byte {offset:,} that cannot be read")
        yield os.fsdecode(key), os.fsdecode(value)
        at = end


def _check_member(name: str, kind: bytes) -> None:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise ValueError(f"{name[:200]!r}: a member must not lead out of its shard")
    if kind not in _FILE:
        raise ValueError(
            f"{name[:200]}: a member must be a plain file, and not a link, a device or sparse"
        )
