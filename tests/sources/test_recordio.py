"""recordio: files that MXNet wrote, with DALI's own reader as the judge, and broken ones."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe.dataset import index_file
from gpupipe.formats import recordio_records
from gpupipe.sources.recordio import Recordio
from gpupipe.testing import check_loader

RECORDS = Path(__file__).parents[1] / "data" / "records"
TOLD = json.loads((RECORDS / "records.json").read_text())
ENGINES: list[dict[str, Any]] = [{"engine": "dali"}, {"engine": "dataloader", "workers": 0}]
MAGIC = 0xCED7230A


def packed(label: float | list[float], content: bytes, id: int = 0) -> bytes:
    """An image record, as mxnet.recordio.pack makes it."""
    if isinstance(label, list):
        return (
            struct.pack("<IfQQ", len(label), 0, id, 0) + np.array(label, "<f4").tobytes() + content
        )
    return struct.pack("<IfQQ", 0, label, id, 0) + content


def part(content: bytes, flag: int = 0) -> bytes:
    return struct.pack("<II", MAGIC, flag << 29 | len(content)) + content + bytes(-len(content) % 4)


def written(file: Path, *payloads: bytes, listed: bool = False) -> Path:
    """A .rec file as MXNet writes it, magic numbers in payloads included; listed: with its .idx."""
    out, places = bytearray(), []
    for payload in payloads:
        places.append(len(out))
        cuts = [
            i
            for i in range(0, len(payload) - 3, 4)
            if payload[i : i + 4] == MAGIC.to_bytes(4, "little")
        ]
        pieces = [
            payload[a:b]
            for a, b in zip([0, *(c + 4 for c in cuts)], [*cuts, len(payload)], strict=True)
        ]
        flags = [0] if len(pieces) == 1 else [1, *[2] * (len(pieces) - 2), 3]
        out += b"".join(map(part, pieces, flags))
    file.write_bytes(bytes(out))
    if listed:
        file.with_suffix(".idx").write_text(
            "".join(f"{n}\t{place}\n" for n, place in enumerate(places))
        )
    return file


def dali_reads(file: Path, count: int) -> list[tuple[bytes, list[float]]]:
    """What DALI's reader finds: encoded images, and labels."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=count, num_threads=1, device_id=None)
    def pipeline() -> Any:
        return tuple(fn.readers.mxnet(path=[str(file)], index_path=[str(file.with_suffix(".idx"))]))

    pipe = pipeline()
    pipe.build()
    images, labels = pipe.run()
    return [(images.at(i).tobytes(), labels.at(i).tolist()) for i in range(count)]


# --- what MXNet writes


@pytest.mark.parametrize(
    ("file", "kind"), [("labels", "image"), ("numbers", "image"), ("parts", "parts")]
)
def test_mxnets_own_files(file: str, kind: str) -> None:
    index = Recordio(shards=str(RECORDS / f"{file}.rec")).index()
    assert [hashlib.blake2b(index.span(i).read()).hexdigest() for i in range(6)] == [
        told[kind] for told in TOLD
    ]
    assert index.labels.tolist() == [told["label"] for told in TOLD]


def test_samples_are_called_as_the_idx_file_calls_them() -> None:
    index = Recordio(shards=str(RECORDS / "labels.rec")).index()
    assert [index.path(i) for i in range(6)] == [
        f"{RECORDS}/labels.rec:{100 + i}" for i in range(6)
    ]
    index = Recordio(shards=str(RECORDS / "numbers.rec")).index()
    assert index.path(5) == f"{RECORDS}/numbers.rec:5"


def test_numbers_of_the_header_are_values() -> None:
    index = Recordio(
        shards=str(RECORDS / "numbers.rec"), values={"floats": [1, 4], "last": 3}
    ).index()
    assert (
        index.values["floats"].tolist()
        == np.array([told["floats"] for told in TOLD], np.float32).tolist()
    )
    assert index.values["last"].tolist() == index.values["floats"][:, 2].tolist()
    assert index.values["last"].dtype == np.float32


@pytest.mark.parametrize("file", ["labels", "parts"])
def test_dalis_reader_finds_the_same(file: str) -> None:
    index = Recordio(shards=str(RECORDS / f"{file}.rec")).index()
    for i, (image, label) in enumerate(dali_reads(RECORDS / f"{file}.rec", 6)):
        assert index.span(i).read().tobytes() == image
        assert [float(index.labels[i])] == label


def test_what_the_tests_write_is_what_mxnet_writes(tmp_path: Path) -> None:
    """The writer of the tests below against MXNet's."""
    for file in ("labels", "numbers", "parts"):
        index = Recordio(shards=str(RECORDS / f"{file}.rec")).index()
        payloads = [
            packed(
                [t["label"], *t["floats"]] if file == "numbers" else t["label"],
                index.span(i).read().tobytes(),
                i,
            )
            for i, t in enumerate(TOLD)
        ]
        assert (
            written(tmp_path / "w.rec", *payloads).read_bytes()
            == (RECORDS / f"{file}.rec").read_bytes()
        )


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_batches_hold_what_the_files_hold(options: dict[str, Any]) -> None:
    data = {
        "source": "recordio",
        "shards": [RECORDS / "numbers.rec", RECORDS / "parts.rec"],
        "label": 0,
    }
    with gpupipe.load(
        {"data": data, "pipeline": ["decode", {"resize": {"size": [20, 20]}}]},
        device="cpu",
        ids=True,
        **options,
    ) as loader:
        found = {
            int(i): (image, int(label))
            for batch in loader
            for i, image, label in zip(batch["id"], batch["image"], batch["label"], strict=True)
        }
    for i in range(6):  # the comments in which the magic number stands change no pixel
        assert torch.equal(found[i][0], found[6 + i][0])
        assert found[i][1] == found[6 + i][1] == TOLD[i]["label"]


def test_the_contract_holds(faces: Path, tmp_path: Path) -> None:
    files = sorted(faces.glob("*/*.jpg"))[:12]
    written(tmp_path / "a.rec", *(packed(n % 3, file.read_bytes()) for n, file in enumerate(files)))
    config = {
        "data": {"source": "recordio", "shards": f"{tmp_path}/a.rec"},
        "pipeline": ["decode", {"random_crop": {"size": 100}}],
    }
    check_loader(lambda **changes: gpupipe.load(config, device="cpu", engine="dali", **changes))


# --- several parts, lists, kept indexes


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(
            st.sampled_from([b"a", b"bcd", MAGIC.to_bytes(4, "little"), bytes(4)]),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_magic_numbers_anywhere(tmp_path: Path, contents: list[list[bytes]]) -> None:
    payloads = [packed(n, b"".join(content)) for n, content in enumerate(contents)]
    index = Recordio(shards=str(written(tmp_path / "m.rec", *payloads))).index()
    assert [index.span(n).read().tobytes() for n in range(len(payloads))] == [
        p[24:] for p in payloads
    ]
    assert index.labels.tolist() == list(range(len(payloads)))


def test_records_made_whole_are_made_again_where_they_are_gone(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        index_file, "_RACY_SECONDS", -60
    )  # what was written this minute is old: its index is kept
    file = written(
        tmp_path / "a.rec", packed(1, MAGIC.to_bytes(4, "little") + b"x" * 20), packed(0, b"plain")
    )
    index = Recordio(shards=str(file)).index()
    (whole,) = cache.rglob("*.parts")
    assert index.path(0) == f"{whole}:{file}:0"
    whole.unlink()
    index = Recordio(shards=str(file)).index()
    assert index.span(0).read().tobytes() == MAGIC.to_bytes(4, "little") + b"x" * 20
    assert index.span(1).read().tobytes() == b"plain"


def test_records_that_cannot_be_made_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "a.rec", packed(1, MAGIC.to_bytes(4, "little")))
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        gpupipe.DataError,
        match=rf"\.parts: cannot be written \(Not a directory\): {file} holds records in several "
        r"parts.*: set GPUPIPE_CACHE",
    ):
        Recordio(shards=str(file)).index()


def test_many_records(tmp_path: Path) -> None:
    """More than are walked at once; the idx file lists every third."""
    file = written(
        tmp_path / "a.rec", *(packed(n % 9, str(n).encode()) for n in range(9000)), listed=True
    )
    lines = file.with_suffix(".idx").read_text().splitlines()
    file.with_suffix(".idx").write_text("\n".join(reversed(lines[::3])) + "\n")
    index = Recordio(shards=str(file)).index()
    assert [index.span(i).read().tobytes() for i in range(len(index))] == [
        str(n).encode() for n in range(0, 9000, 3)
    ]
    assert index.names[2999] == "8997"
    file.with_suffix(".idx").unlink()
    assert len(Recordio(shards=str(file)).index()) == 9000


def test_records_without_an_image(tmp_path: Path) -> None:
    file = written(tmp_path / "a.rec", packed([10.0, 20.0], b""), packed(4, b"x"))
    with pytest.raises(
        gpupipe.DataError, match=r"a\.rec: record 0 holds no image: set data\.empty=skip"
    ):
        Recordio(shards=str(file)).index()
    index = Recordio(shards=str(file), empty="skip").index()
    assert [index.path(i) for i in range(len(index))] == [f"{file}:1"]
    assert index.labels.tolist() == [4]


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
        ("0\t0\n1\t0\n", r"a\.idx: byte 0 stands in it more than once"),
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
