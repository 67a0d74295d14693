"""What recordio reads from MXNet's .rec files."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe.sources.recordio import Recordio
from gpupipe.testing import check_loader
from helpers.folders import make_files_old
from helpers.loaders import ENGINES
from helpers.record_files import MAGIC, RECORDS, TOLD, packed, written


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
    assert [hashlib.blake2b(index.read(i)).hexdigest() for i in range(6)] == [
        told[kind] for told in TOLD
    ]
    assert index.labels.tolist() == [told["label"] for told in TOLD]


def test_samples_are_called_as_the_idx_file_calls_them() -> None:
    index = Recordio(shards=str(RECORDS / "labels.rec")).index()
    assert [index.location(i) for i in range(6)] == [
        f"{RECORDS}/labels.rec:{100 + i}" for i in range(6)
    ]
    index = Recordio(shards=str(RECORDS / "numbers.rec")).index()
    assert index.location(5) == f"{RECORDS}/numbers.rec:5"


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
        assert index.read(i).tobytes() == image
        assert [float(index.labels[i])] == label


def test_what_the_tests_write_is_what_mxnet_writes(tmp_path: Path) -> None:
    """The writer of the tests below against MXNet's."""
    for file in ("labels", "numbers", "parts"):
        index = Recordio(shards=str(RECORDS / f"{file}.rec")).index()
        payloads = [
            packed(
                [t["label"], *t["floats"]] if file == "numbers" else t["label"],
                index.read(i).tobytes(),
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
    assert [index.read(n).tobytes() for n in range(len(payloads))] == [p[24:] for p in payloads]
    assert index.labels.tolist() == list(range(len(payloads)))


def test_records_made_whole_are_made_again_where_they_are_gone(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    file = written(
        tmp_path / "a.rec", packed(1, MAGIC.to_bytes(4, "little") + b"x" * 20), packed(0, b"plain")
    )
    index = Recordio(shards=str(file)).index()
    (whole,) = cache.rglob("*.parts")
    assert index.location(0) == f"{whole}:{file}:0"
    whole.unlink()
    index = Recordio(shards=str(file)).index()
    assert index.read(0).tobytes() == MAGIC.to_bytes(4, "little") + b"x" * 20
    assert index.read(1).tobytes() == b"plain"


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
    assert [index.read(i).tobytes() for i in range(len(index))] == [
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
    assert [index.location(i) for i in range(len(index))] == [f"{file}:1"]
    assert index.labels.tolist() == [4]
