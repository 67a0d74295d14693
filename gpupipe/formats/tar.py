"""Members of uncompressed tar files: ustar, GNU (long names) and pax.

Not by the tarfile module, which takes about three times as long (benchmarks/formats.py), and which
a header with a negative size keeps busy forever in many versions of Python (CVE-2025-8194). This
one goes forwards alone, and takes nothing but plain files and folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import Damaged

_BLOCK = 512
_FILE, _FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL = (
    (b"0", b"\0", b"7"),
    b"5",
    b"L",
    b"K",
    b"x",
    b"g",
)
_MOST_EXTENDED = 1 << 20
"""Bytes of a long name, or of a pax header."""
_ZEROS = bytes(_BLOCK)


@dataclass(frozen=True, slots=True)
class Member:
    """A plain file in a tar: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


def members(data: NDArray[np.uint8]) -> Iterator[Member]:
    """The plain files of a tar, in its order.

    Raises ValueError where it is no whole tar, or has a member that is neither a plain file nor a
    folder.
    """
    view, place, told = data.data, 0, dict[str, str]()
    while (head := bytes(view[place : place + _BLOCK])) != _ZEROS:
        _check_head(head, place, len(data))
        kind, size = head[156:157], _size(head, told, place)
        content = place + _BLOCK
        place = content + size + -size % _BLOCK
        if content + size > len(data):
            raise Damaged(
                f"cut off: the member at byte {content - _BLOCK:,} ends "
                f"{content + size - len(data):,} bytes behind the file's end"
            )
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL):
            told |= _extended(
                kind, bytes(view[content : content + min(size, _MOST_EXTENDED + 1)]), content
            )
            continue
        name, told = told["path"] if "path" in told else _name(head), {}
        if kind != _FOLDER and not (
            kind == b"\0" and name.endswith("/")
        ):  # before 1988, a slash was what told a folder
            _check_member(name, kind)
            yield Member(name, content, size)
    if told or data[place:].any():
        raise Damaged(
            f"bytes behind the tar's end at byte {place:,}: tar files that were joined must "
            "be written as one"
        )


def _check_head(head: bytes, place: int, size: int) -> None:
    if len(head) < _BLOCK:
        raise Damaged(
            f"cut off at byte {size:,}: a tar ends in a block of zeros"
            if place
            else f"{size:,} bytes are no tar"
        )
    told, counted = _octal(head[148:156]), head[:148] + b" " * 8 + head[156:]
    if told != sum(counted) and told != sum(counted) - 256 * sum(
        b > 127 for b in counted
    ):  # some old writers took bytes for signed
        raise Damaged(
            f"the checksum of the header at byte {place:,} is wrong: the file is damaged, "
            "or no uncompressed tar"
        )


def _size(head: bytes, told: dict[str, str], place: int) -> int:
    if "size" in told and head[156:157] not in (_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK):
        text = told["size"]
        found = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
    else:
        field = head[124:136]
        found = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(field)
    if found is None:
        raise Damaged(f"the size in the header at byte {place:,} is no number")
    return found


def _octal(field: bytes) -> int | None:
    text, _, rest = field.partition(b"\0")
    digits = text.strip(b" ") or b"0"
    return None if digits.strip(b"01234567") or rest.strip(b" \0") else int(digits, 8)


def _name(head: bytes) -> str:
    name, prefix = (head[a:b].partition(b"\0")[0] for a, b in ((0, 100), (345, 500)))
    return os.fsdecode(prefix + b"/" + name if prefix and head[257:263] == b"ustar\0" else name)


def _extended(kind: bytes, content: bytes, place: int) -> dict[str, str]:
    """What a header says of the member behind it."""
    if len(content) > _MOST_EXTENDED:
        raise Damaged(f"a header of more than {_MOST_EXTENDED:,} bytes at byte {place:,}")
    if kind in (_LONG_NAME, _LONG_LINK):
        return {"path": os.fsdecode(content.partition(b"\0")[0])} if kind == _LONG_NAME else {}
    records = dict(_records(content, place))
    sparse = next((key for key in records if key.startswith("GNU.sparse")), None)
    if sparse:
        raise ValueError(f"a sparse file behind byte {place:,}: write it without holes")
    wanted = {key: value for key, value in records.items() if key in ("path", "size")}
    if wanted and kind == _PAX_OF_ALL:
        raise Damaged(
            f"a header at byte {place:,} that gives all members the same {' and '.join(wanted)}"
        )
    return wanted


def _records(content: bytes, place: int) -> Iterator[tuple[str, str]]:
    """Of a pax header: "LENGTH KEY=VALUE" and a line feed each, where LENGTH counts all of it."""
    at = 0
    while at < len(content) and content[at]:
        digits = content[at : at + 8].partition(b" ")[0]
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = content[at + len(digits) + 1 : end - 1].partition(b"=")
        if (
            end <= at + len(digits)
            or end > len(content)
            or content[end - 1] != ord("\n")
            or not equals
        ):
            raise Damaged(f"a pax header at byte {place:,} that cannot be read")
        yield os.fsdecode(key), os.fsdecode(value)
        at = end


def _check_member(name: str, kind: bytes) -> None:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name or not name:
        raise ValueError(f"{name[:200]!r}: a member must not lead out of its shard")
    if kind not in _FILE:
        raise ValueError(
            f"{name[:200]}: a member must be a plain file, and not a link, a device or sparse"
        )
