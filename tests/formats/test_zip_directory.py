import io
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpupipe.formats import DamagedError, zip_directory
from gpupipe.formats.zip_directory import ZipMember

FILES = {"a/1.jpg": b"x" * 3000, "b/2.jpg": b"y", "c/empty.jpg": b"", "c/näme.jpg": b"n" * 100}


def archive(method: int = zipfile.ZIP_STORED, **options: Any) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method, **options) as out:
        for name, content in FILES.items():
            out.writestr(name, content)
        out.writestr("folder/", b"")
    return stream.getvalue()


def as_array(content: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(content, np.uint8)


def read(content: bytes) -> dict[str, bytes]:
    """Return the content of every member, as the parser finds it."""
    data, found = as_array(content), {}
    for member in zip_directory.iter_members(data):
        begin = zip_directory.locate(data, member)
        stored = data[begin : begin + member.stored_size]
        if member.is_deflated:
            stored = zip_directory.inflate(stored, member.size)
        zip_directory.check_crc(stored, member.crc)
        found[member.name] = stored.tobytes()
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_found_and_folders_left_out(method: int) -> None:
    assert read(archive(method)) == FILES


def test_an_archive_behind_other_bytes_and_with_a_comment() -> None:
    stream = io.BytesIO(b"#!/bin/sh\n" * 5)
    with zipfile.ZipFile(stream, "a") as out:
        out.writestr("a.jpg", b"content")
        out.comment = b"PK\5\6 is no end" * 3
    assert read(stream.getvalue()) == {"a.jpg": b"content"}
    assert read(b"before" + archive()) == FILES


def test_zip64_as_zipfile_writes_it() -> None:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w") as out,
        out.open(zipfile.ZipInfo("a.jpg"), "w", force_zip64=True) as member,
    ):
        member.write(b"content")
    assert read(stream.getvalue()) == {"a.jpg": b"content"}


def test_zip64_of_more_members_than_16_bits_count() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as out:
        for n in range(0x10001):
            out.writestr(f"{n}", b"")
    data = as_array(stream.getvalue())
    names = [member.name for member in zip_directory.iter_members(data)]
    assert names == [str(n) for n in range(0x10001)]
    moved = as_array(b"before" + stream.getvalue())
    assert zip_directory.locate(moved, list(zip_directory.iter_members(moved))[-1]) > 0


def test_zip64_sizes_and_places_in_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an archive above 2 GB: zipfile writes its records where the limit is low."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 50)
    content = archive()
    assert b"PK\6\6" in content
    assert read(content) == FILES


def damaged(change: Callable[[bytearray], Any], method: int = zipfile.ZIP_STORED) -> bytes:
    content = bytearray(archive(method))
    result = change(content)
    return bytes(content if result is None else result)


def set_at(mark: bytes, offset: int, value: bytes) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        at = content.index(mark) + offset
        content[at : at + len(value)] = value

    return change


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes are no ZIP"),
        (b"\xff\xd8" * 40, "80 bytes are no ZIP"),
        (damaged(lambda c: c[:-400]), "cut off: a ZIP ends in its directory"),
        (damaged(lambda c: c[1000:]), "directory of .* is not in the file"),
        (damaged(set_at(b"PK\1\2", 0, b"PKXX")), "the directory is damaged at byte"),
        (damaged(set_at(b"a/1.jpg", -30, b"PKXX")), "a/1.jpg is not at byte"),
        (damaged(set_at(b"PK\1\2", 46, b"z")), "z/1.jpg is not at byte"),
        (damaged(set_at(b"PK\1\2", 8, b"\1")), "a/1.jpg: encrypted"),
        (damaged(set_at(b"PK\5\6", 4, b"\1")), "split archive"),
    ],
    ids=["empty", "other", "cut", "head", "directory", "header", "name", "flag", "split"],
)
def test_what_is_damaged_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(content)


def entry(**changes: Any) -> tuple[np.ndarray[Any, Any], ZipMember]:
    data = as_array(archive(zipfile.ZIP_DEFLATED))
    first = next(zip_directory.iter_members(data))
    parts = {name: getattr(first, name) for name in ZipMember.__slots__}
    return data, ZipMember(**parts | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flags": 1}, "a/1.jpg: encrypted: .* without a password"),
        ({"flags": 0x40}, "encrypted"),
        ({"method": 12}, "compressed with bzip2: .*stored and deflated"),
        ({"method": 77}, "compressed with method 77"),
        ({"stored_size": 1 << 40}, "cut off: a/1.jpg ends past"),
        ({"header": 1 << 40}, "cut off: a/1.jpg begins past"),
        ({"size": 1 << 40}, "are not 1,099,511,627,776 bytes of content"),
        ({"method": 0}, "bytes are not 3,000 bytes of content"),
    ],
    ids=str,
)
def test_a_member_that_cannot_be_read_is_refused(changes: dict[str, Any], words: str) -> None:
    data, member = entry(**changes)
    with pytest.raises(ValueError, match=words):
        zip_directory.locate(data, member)


def test_two_members_of_one_name() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as out:
        out.writestr("a.jpg", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            out.writestr("a.jpg", b"2")
    with pytest.raises(DamagedError, match=r"two members are called a\.jpg: write .* again"):
        read(stream.getvalue())


def test_a_damaged_stream_is_told_by_its_bytes_or_by_its_crc() -> None:
    content = np.arange(2000, dtype=np.uint8).tobytes()
    stream = zlib.compressobj(wbits=-15)
    stored = as_array(stream.compress(content) + stream.flush())
    assert zip_directory.inflate(stored, 2000).tobytes() == content
    for size in (1999, 2001):
        with pytest.raises(DamagedError, match="compressed bytes are damaged"):
            zip_directory.inflate(stored, size)
    with pytest.raises(DamagedError, match="compressed bytes are damaged"):
        zip_directory.inflate(stored[::-1].copy(), 2000)
    zip_directory.check_crc(as_array(content), zlib.crc32(content))
    with pytest.raises(DamagedError, match="another CRC-32"):
        zip_directory.check_crc(as_array(content), 7)
