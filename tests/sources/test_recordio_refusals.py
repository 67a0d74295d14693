"""Files, lists and options of recordio that are refused."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe.formats import recordio_records
from gpupipe.sources.recordio import Recordio
from helpers.record_files import RECORDS, packed, part, written

# --- what is refused
PLAIN = part(packed(1, b"abc"))
REFUSED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "text": (
        b"hello, this is text",
        {},
        "no record begins at byte 0, where one should: the file is damaged, or no RecordIO file",
    ),
    "damage behind the first": (
        PLAIN + b"12345678" * 9,
        {},
        f"no record begins at byte {len(PLAIN)}",
    ),
    "cut off in a payload": (
        PLAIN + PLAIN[:-8],
        {},
        f"cut off: the record at byte {len(PLAIN)} ends past the file's end",
    ),
    "cut off in a head": (PLAIN + PLAIN[:6], {}, f"cut off: the record at byte {len(PLAIN)}"),
    "a flag that none has": (part(packed(1, b"abc"), 5), {}, "the record at byte 0 has the flag 5"),
    "a first part alone": (
        part(packed(1, b"abc"), 1),
        {},
        "the record at byte 0, or one after it, lacks one of its parts",
    ),
    "a last part alone": (PLAIN + part(b"abc", 3), {}, "lacks one of its parts"),
    "a whole record between two parts": (
        part(b"abc", 1) + PLAIN + part(b"abc", 3),
        {},
        "lacks one of its parts",
    ),
    "no header": (
        part(b"abc"),
        {},
        r"record 0 is shorter than the header of an image record \(24 bytes\)",
    ),
    "fewer numbers than announced": (
        part(struct.pack("<IfQQ", 9, 0, 0, 0) + bytes(8)),
        {},
        "record 0 is shorter than the numbers that its header announces",
    ),
    "2^32 - 1 numbers": (
        part(struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0) + bytes(8)),
        {},
        "shorter than the numbers",
    ),
    "a label of 1.5": (
        PLAIN + part(packed(1.5, b"abc")),
        {},
        "record 1: the label 1.5 is not a whole number",
    ),
    "a label of nan": (
        part(packed(float("nan"), b"abc")),
        {},
        "record 0: the label nan is not a whole number",
    ),
    "a negative label": (part(packed(-1, b"abc")), {}, "a.rec:0: the label '-1' is negative"),
    "too few numbers": (
        part(packed([1.0, 2.0], b"abc")),
        {"values": {"v": [1, 3]}},
        "record 0 has fewer than 3 numbers",
    ),
    "no label there": (PLAIN, {"label": 1}, "record 0 has fewer than 2 numbers"),
    "no records": (b"", {}, "no sample in 1 shard: the files hold no records"),
}


@pytest.mark.parametrize(("content", "options", "said"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_refused(
    tmp_path: Path, content: bytes, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.rec").write_bytes(content)
    with pytest.raises(gpupipe.DataError, match=f"^{tmp_path}/(a.rec: .*)?{said}"):
        Recordio(shards=str(tmp_path / "a.rec"), **options).index()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 0\n", r"a\.idx:1: not a key, a TAB and where its record begins"),
        ("0\t0\n\n1\tx\n", r"a\.idx:3: not a key"),
        (
            "0\t0\n1\t8\n",
            r"a\.idx: no record of .*a\.rec begins at byte 8, as it says of '1': make it again",
        ),
        ("0\t0\n1\t0\n", r"a\.idx:2: byte 0 stands in it more than once"),
    ],
    ids=repr,
)
def test_lists_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    written(tmp_path / "a.rec", packed(1, b"abc"))
    (tmp_path / "a.idx").write_text(text)
    with pytest.raises(gpupipe.DataError, match=said):
        Recordio(shards=str(tmp_path / "a.rec")).index()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"values": {"image": 1}}, "'image' cannot be the name"),
        ({"values": {"v": [3, 1]}}, r"\[1, 3\]: the smaller number first"),
        ({"values": {"v": [2, 2]}}, "one past the last"),
        ({"values": {"v": "x"}}, "the place of a number"),
        ({"label": -1}, "at least 0"),
    ],
    ids=str,
)
def test_options_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(gpupipe.ConfigError, match=said):
        gpupipe.load(
            {
                "data": {"source": "recordio", "shards": RECORDS / "labels.rec", **options},
                "pipeline": ["decode"],
            }
        )


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_bytes_do_more_than_be_refused(data: st.DataObject) -> None:
    content = bytearray(
        PLAIN
        + part(b"abcd" * 9, 1)
        + part(b"x" * 9, 2)
        + part(b"", 3)
        + part(packed([1.0, 2.0], b"abc"))
    )
    place, noise = data.draw(st.integers(0, len(content))), data.draw(st.binary(max_size=12))
    content[place : place + len(noise)] = noise
    bytes_ = np.frombuffer(bytes(content[: data.draw(st.integers(0, len(content)))]), np.uint8)
    try:
        for records in recordio_records.iter_records(bytes_):
            ends = records.begin + records.length
            assert (ends <= len(bytes_)).all()
            assert (records.find_multipart() == (np.bincount(records.part) > 1)).all()
    except ValueError:
        return
