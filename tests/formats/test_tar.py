"""The tar parser: what tarfile writes in every format is found where tarfile finds it, and what is
no whole tar of plain files is refused.
"""

import io
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpupipe.formats import DamagedError, tar

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
PARTS = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60
).filter(lambda part: part not in ("..", "."))
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **more: Any) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.size, found.type = size, kind
    for key, value in more.items():
        setattr(found, key, value)
    return found


def written(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as file:
        for member, content in members:
            file.addfile(member, io.BytesIO(content))
    return out.getvalue()


def found(content: bytes) -> list[tuple[str, int, int]]:
    return [(m.name, m.offset, m.size) for m in tar.iter_members(np.frombuffer(content, np.uint8))]


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    members=st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=6),
    mtime=st.sampled_from([0, 1.5, -3, 2**40]),
)
@example(
    members=[("n" * 100, b"x"), ("d" * 155 + "/" + "n" * 100, b""), ("ä" * 130, b"y" * 512)],
    mtime=1,
)
def test_members_are_those_that_tarfile_finds(
    format: int, members: list[tuple[str, bytes]], mtime: float
) -> None:
    try:
        content = written(
            *((info(name, len(content), mtime=mtime), content) for name, content in members),
            format=format,
        )
    except ValueError:
        assert format == tarfile.USTAR_FORMAT  # which has no room for long names
        return
    with tarfile.open(fileobj=io.BytesIO(content)) as judge:
        assert found(content) == [(m.name, m.offset_data, m.size) for m in judge]


def test_folders_are_no_members_and_old_formats_are_read() -> None:
    folder, old, signed = (
        info("a/", kind=tarfile.DIRTYPE),
        info("b", 1, tarfile.AREGTYPE),
        info("ä", 1),
    )
    content = bytearray(
        written((folder, b""), (old, b"x"), (signed, b"y"), format=tarfile.GNU_FORMAT)
    )
    assert [name for name, _, _ in found(bytes(content))] == ["b", "ä"]
    head = slice(512 * 3, 512 * 4)
    total = sum(b - 256 * (b > 127) for b in content[head]) - sum(content[head][148:156]) + 256
    content[512 * 3 + 148 : 512 * 3 + 156] = (
        b"%06o\0 " % total
    )  # as writers did that took bytes for signed
    assert [name for name, _, _ in found(bytes(content))] == ["b", "ä"]


@pytest.mark.parametrize("letter", ["n", "\udcff"], ids=["a usual sum", "a sum above 16 bits"])
def test_the_sum_of_a_header_is_exact(letter: str) -> None:
    member = info(letter * 99, 1, linkname=letter * 100, uname=letter * 32, gname=letter * 32)
    member.name = f"{letter * 150}/{member.name}"
    content = bytearray(written((member, b"x"), format=tarfile.USTAR_FORMAT))
    total = int(content[148:154], 8)
    assert (total > 0xFFFF) == (letter != "n")
    assert found(bytes(content)) == [(member.name, 512, 1)]
    for wrong in (total + 1, total - 1, total % 65521 if total > 65521 else total + 65521):
        content[148:154] = b"%06o" % wrong
        with pytest.raises(DamagedError, match="the checksum of the header at byte 0 is wrong"):
            found(bytes(content))


def test_sizes_that_octal_digits_do_not_hold() -> None:
    head = bytearray(info("big", 1).tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\x80" + (2**40).to_bytes(11, "big")
    with pytest.raises(
        DamagedError,
        match="cut off: the member at byte 0 ends 1,099,511,626,752 bytes past the file's end",
    ):
        found(mended(head) + bytes(1024))
    content = written((info("a", 3, pax_headers={"size": "3"}), b"xyz"))
    assert found(content) == [("a", 1536, 3)]


def mended(head: bytearray) -> bytes:
    """With the right checksum."""
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


def changed(place: int, to: bytes, of: bytes | None = None) -> bytes:
    """A tar of one member with other bytes in its header, and the right checksum for them."""
    content = of or written((info("a", 3), b"xyz"), format=tarfile.USTAR_FORMAT)
    head = bytearray(content[:512])
    head[place : place + len(to)] = to
    return mended(head) + content[512:]


WHOLE = written((info("a", 3), b"xyz"), (info("b", 700), b"y" * 700), format=tarfile.USTAR_FORMAT)
PAX = written((info("ä" * 60, 1), b"x"))
REFUSED = {
    "nothing": (b"", "0 bytes are no tar"),
    "text": (
        b"hello" * 300,
        "the checksum of the header at byte 0 is wrong: the file is damaged, or no "
        "uncompressed tar",
    ),
    "gzip": (b"\x1f\x8b" + bytes(1000), "the checksum of the header at byte 0 is wrong"),
    "cut off in a member": (
        WHOLE[:1700],
        "cut off: the member at byte 1,024 ends 536 bytes past the file's end",
    ),
    "cut off in a header": (WHOLE[:1300], "cut off at byte 1,300: a tar ends in a block of zeros"),
    "without an end": (WHOLE[:2560], "cut off at byte 2,560: a tar ends in a block of zeros"),
    "a bit in a name": (
        changed(0, b"a")[:3] + b"x" + changed(0, b"a")[4:],
        "the checksum of the header at byte 0 is wrong",
    ),
    "two tars": (
        WHOLE + WHOLE,
        "bytes past the tar's end at byte 2,560: tar files that were joined must be written as one",
    ),
    "a link": (
        written((info("a", kind=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
        "a: a member must be a plain file, and not a link",
    ),
    "a hard link": (
        written((info("a", kind=tarfile.LNKTYPE, linkname="b"), b"")),
        "a: a member must be a plain file",
    ),
    "a device": (
        written((info("a", kind=tarfile.CHRTYPE), b"")),
        "a: a member must be a plain file",
    ),
    "a GNU sparse file": (changed(156, b"S"), "a: a member must be a plain file"),
    "a pax sparse file": (
        written((info("a", 3, pax_headers={"GNU.sparse.major": "1"}), b"xyz")),
        "a sparse file after byte 512",
    ),
    "out of the folder": (
        written((info("a/../../b"), b"")),
        r"'a/\.\./\.\./b': a member must not lead out of its shard",
    ),
    "an absolute path": (written((info("/a"), b"")), "'/a': a member must not lead out"),
    "no name": (changed(0, b"\0"), "'': a member must not lead out"),
    "a negative size": (
        changed(124, b"\xff" * 12),
        "the size in the header at byte 0 is no number",
    ),
    "a size of letters": (
        changed(124, b"0000000000x\0"),
        "the size in the header at byte 0 is no number",
    ),
    "a negative pax size": (
        written((info("a", 3, pax_headers={"size": "-512"}), b"xyz")),
        "the size in the header at byte 1,024 is no number",
    ),
    "one size for all": (
        written((info("a", 3, tarfile.XGLTYPE), b"9 size=1\n"[:3])),
        "a pax header at byte 512 that cannot be read",
    ),
    "one path for all": (
        changed(156, b"g", of=PAX),
        "a header at byte 512 that gives all members the same path",
    ),
    "a pax header without an end": (
        changed(156, b"x") + bytes(1024),
        "a pax header at byte 512 that cannot be read",
    ),
    "a pax header before nothing": (
        PAX[:1024] + bytes(1024),
        "bytes past the tar's end at byte 1,024",
    ),
    "a name of megabytes": (
        written((info("x" * (2 << 20)), b""), format=tarfile.GNU_FORMAT),
        "a header of more than 1,048,576 bytes at byte 512",
    ),
}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED)
def test_tars_that_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        found(content)
