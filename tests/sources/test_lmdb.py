import multiprocessing
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from pydantic import ValidationError

from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.errors import DataError, SampleError
from gpupipe.sources.lmdb import Lmdb
from gpupipe.testing import check_loader
from helpers.beside_folders import ENGINES, assert_same_as_folder, load_data
from helpers.folders import make_files_old
from helpers.lmdb_files import write_lmdb
from helpers.zip_files import png


@pytest.fixture
def database(faces: Path, tmp_path: Path) -> dict[str, Any]:
    """All faces, with their paths as keys."""
    values = {str(p.relative_to(faces)): p.read_bytes() for p in faces.glob("*/*.jpg")}
    path = write_lmdb(tmp_path / "faces", values)
    fields = {"image": "{person}/{file}"}
    return {"source": "lmdb", "path": str(path), "fields": fields, "label": "{person}"}


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_database_is_the_same_as_its_folder(
    database: dict[str, Any], faces: Path, options: dict[str, Any]
) -> None:
    assert_same_as_folder(database, faces, options)


def test_the_contract_of_a_loader_holds(database: dict[str, Any]) -> None:
    check_loader(lambda **changes: load_data(database, **{"engine": "cpu", **changes}))


def numbered(path: Path, **more: bytes) -> str:
    values = {"num-samples": b"12"}
    for n in range(12):
        values |= {f"image-{n:02}": png(n), f"mask-{n:02}": png(100 + n)}
        values[f"label-{n:02}"] = f"{'ab'[n % 2]}\n".encode()
    return str(write_lmdb(path, values | {k.replace("_", "-"): v for k, v in more.items()}))


def test_numbered_keys_with_labels_and_a_second_field(tmp_path: Path) -> None:
    fields = {"image": "image-{id}", "m": "mask-{id}"}
    source = Lmdb(path=numbered(tmp_path / "x"), fields=fields, label="label-{id}")
    index = source.index()
    assert index.classes == ["a", "b"]
    assert index.labels.tolist() == [0, 1] * 6
    assert index.location(3) == f"{tmp_path}/x/data.mdb:image-03"
    assert isinstance(index.columns["m"], SpanColumn)
    for n in range(12):
        assert index.read(n).tobytes() == png(n)
        assert index.read(n, "m").tobytes() == png(100 + n)
    assert list(source.specs()) == ["image", "m"]


def test_all_keys_without_labels_and_counts_left_out(tmp_path: Path) -> None:
    values = {f"{n}": png(n) for n in range(3)} | {"__len__": pickle.dumps(3)}
    path = write_lmdb(tmp_path / "x.lmdb", values, subdir=False)
    index = Lmdb(path=path).index()
    assert [index.names[n] for n in range(len(index))] == ["0", "1", "2"]
    assert not index.has_labels


def test_a_manifest_chooses_and_labels(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x")
    (tmp_path / "list.csv").write_text("key,label\nimage-07,cat\nimage-01,dog\nimage-03,cat\n")
    index = Lmdb(path=path, manifest=tmp_path / "list.csv").index()
    assert [index.names[n] for n in range(3)] == ["image-07", "image-01", "image-03"]
    assert (index.classes, index.labels.tolist()) == (["cat", "dog"], [0, 1, 0])
    assert index.read(0).tobytes() == png(7)
    for row, words in [("image-99,a", "is not in"), ("image-07,a", "is listed twice")]:
        (tmp_path / "list.csv").write_text(f"key,label\nimage-07,a\n{row}\n")
        with pytest.raises(DataError, match=rf"list\.csv:3: the key '{row[:8]}' {words}"):
            Lmdb(path=path, manifest=tmp_path / "list.csv").index()


def test_a_named_database(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "x", {f"{n}": png(n) for n in range(3)}, "images")
    assert len(Lmdb(path=path, database="images").index()) == 3
    with pytest.raises(DataError, match=r"set data\.database to images"):
        Lmdb(path=path).index()
    with pytest.raises(DataError, match="no database 'image' in it"):
        Lmdb(path=path, database="image").index()


def test_a_change_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files_old(monkeypatch)
    path = Path(numbered(tmp_path / "x"))
    source = Lmdb(path=path, fields={"image": "image-{id}"})
    fingerprint = source.index().fingerprint
    assert source.index().fingerprint == fingerprint
    write_lmdb(path, {"image-12": png(12)})
    assert len(source.index()) == 13


CAFFE = b"\x08\x03\x10\x20\x18\x20\x22\x04abcd"


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        (
            {"0": pickle.dumps((png(1), 0))},
            {},
            "the value of 0 is a Python pickle, which could run any code",
        ),
        ({"0": CAFFE}, {}, "looks like a protocol buffer, such as Caffe's Datum"),
        (
            {"a": b"text", "image-1": png(1)},
            {},
            r"the value of a is no image file .*further keys are image-1\): set data.fields",
        ),
        (
            {"image-1": png(1)},
            {"fields": {"image": "img-{id}"}},
            "none of 1 key is like 'img-{id}'; there are image-1: set data.fields",
        ),
        (
            {"image-1": png(1), "label-1": pickle.dumps(3)},
            {"fields": {"image": "image-{id}"}, "label": "label-{id}"},
            "the value of label-1 is a Python pickle",
        ),
        (
            {"image-1": png(1), "label-1": b"\xff\0\0\0"},
            {"fields": {"image": "image-{id}"}, "label": "label-{id}"},
            "the value of label-1 is no label: a label is the text",
        ),
        (
            {"image-1": png(1), "label-1": b"x" * 5000},
            {"fields": {"image": "image-{id}"}, "label": "label-{id}"},
            "the value of label-1 is no label: a label is the text",
        ),
        (
            {"image-1": png(1)},
            {"fields": {"image": "image-{id}"}, "label": "label-{id}"},
            "no key 'label-1': see data.label",
        ),
        (
            {"image-1": png(1)},
            {"fields": {"image": "image-{id}", "m": "mask-{id}"}},
            "no key 'mask-1': see data.fields",
        ),
        ({}, {}, "none of 0 keys is like"),
    ],
    ids=[
        "pickle",
        "caffe",
        "text",
        "template",
        "pickled",
        "binary",
        "long",
        "label",
        "field",
        "empty",
    ],
)
def test_what_is_no_image_or_label_is_refused_with_its_key(
    tmp_path: Path, values: Mapping[str, bytes], options: dict[str, Any], words: str
) -> None:
    path = write_lmdb(tmp_path / "x", values)
    with pytest.raises(DataError, match=f"^{path}/data.mdb: .*{words}"):
        Lmdb(path=path, **options).index()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": {"image": "{a}{a}"}}, "'{a}{a}' is no template"),
        ({"fields": {"image": "image-{"}}, "'image-{' is no template"),
        ({"label": "label-{id}"}, "'label-{id}' should be made of the placeholders of '{key}'"),
        ({"label": "label"}, "should be made of the placeholders"),
        ({"label": "{key}", "manifest": "x.csv"}, "leave out data.label"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Lmdb(path=Path("x"), **options)


def test_a_missing_and_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Lmdb(path=tmp_path / "x").index()
    with pytest.raises(DataError, match="no LMDB database, since it has no"):
        Lmdb(path=tmp_path).index()
    (tmp_path / "data.mdb").write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match=f"{tmp_path}/data.mdb: 5,000 bytes are no LMDB"):
        Lmdb(path=tmp_path).index()


def read_all(column: SpanColumn) -> list[bytes]:
    return [data.tobytes() for data in column.read(np.arange(len(column)))]


def test_a_forked_process_reads_while_the_library_has_the_database_open(tmp_path: Path) -> None:
    path = numbered(tmp_path / "x")
    with lmdb.open(path, readonly=True):
        column = Lmdb(path=path, fields={"image": "image-{id}"}).index().columns["image"]
        assert isinstance(column, SpanColumn)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(read_all, (column,)).get(60) == [png(n) for n in range(12)]


@pytest.mark.parametrize("options", ENGINES[1:], ids=str)
def test_a_value_that_is_no_image_is_named_and_skipped(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    path = numbered(tmp_path / "x", image_05=b"no image")
    data = {"source": "lmdb", "path": path, "fields": {"image": "image-{id}"}}
    with (
        load_data(data, pipeline=["decode"], **options) as loader,
        pytest.raises(SampleError, match=r"data\.mdb:image-05: not an image"),
    ):
        list(loader)
    with load_data(data, pipeline=["decode"], **options, on_error="skip", max_bad=0.1) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 11
