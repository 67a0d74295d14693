import multiprocessing
import resource
import threading
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.source import MAX_PIXELS
from gpupipe.errors import DataError, SampleError
from gpupipe.sources.zip import Zip, ZipColumn
from gpupipe.testing import check_loader
from helpers.beside_folders import ENGINES, assert_same_as_folder, load_data
from helpers.folders import make_files_old
from helpers.full_product import IS_FULL
from helpers.zip_files import png, write_zip

METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def write_faces(faces: Path, path: Path, method: str, count: int = 60) -> Path:
    """Write faces into the folder data/train of an archive, in an order of its own."""
    files = list(faces.glob("*/*.jpg"))[:count]
    contents = {f"data/train/{file.relative_to(faces)}": file.read_bytes() for file in files}
    return write_zip(path, contents, METHODS[method])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_an_archive_is_the_same_as_its_folder(
    faces: Path, tmp_path: Path, options: dict[str, Any], method: str
) -> None:
    archive = write_faces(faces, tmp_path / "faces.zip", method)
    data = {"source": "zip", "shards": str(archive), "folder": "data/train"}
    assert_same_as_folder(data, faces, options)


@pytest.mark.parametrize(
    ("method", "options"),
    list(product(METHODS, ENGINES[:2]) if IS_FULL else zip(METHODS, ENGINES, strict=False)),
    ids=str,
)
def test_the_contract_of_a_loader_holds(
    faces: Path, tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    archive = write_faces(faces, tmp_path / "faces.zip", method, 20)
    data = {"source": "zip", "shards": str(archive), "folder": "data/train"}
    check_loader(lambda **changes: load_data(data, **{**options, **changes}))


def small(path: Path, method: int = zipfile.ZIP_DEFLATED, **more: bytes) -> Path:
    files = {f"{'ab'[n % 2]}/{n}.png": png(n) for n in range(12)}
    return write_zip(path, files | {k.replace("__", "/"): v for k, v in more.items()}, method)


def test_order_classes_and_what_is_left_out(tmp_path: Path) -> None:
    hidden = {".h/1.png": b"", "__MACOSX/a/1.png": b"", "a/._1.png": b"", "readme.txt": b""}
    files = {f"{name}/{n}.PNG": png(n) for name in ("10", "9") for n in range(2)}
    deep = {"9/x/7.png": png(7)}
    path = write_zip(tmp_path / "x.zip", hidden | deep | files)
    index = Zip(shards=str(path)).index()
    assert index.classes == ["10", "9"]
    assert index.labels.tolist() == [0, 0, 1, 1, 1]
    assert [index.names[i] for i in range(5)] == [
        "10/0.PNG",
        "10/1.PNG",
        "9/0.PNG",
        "9/1.PNG",
        "9/x/7.png",
    ]
    assert isinstance(index.columns["image"], SpanColumn)
    assert index.location(4) == f"{path}:9/x/7.png"
    unlabelled = Zip(shards=str(path), label=None).index()
    assert (len(unlabelled), unlabelled.has_labels) == (5, False)


def test_several_archives_share_their_classes(tmp_path: Path) -> None:
    small(tmp_path / "0.zip", zipfile.ZIP_STORED)
    small(tmp_path / "1.zip", zipfile.ZIP_DEFLATED, c__7=b"", c__0_png=b"")
    write_zip(tmp_path / "2.zip", {"c/1.png": png(99)})
    index = Zip(shards=str(tmp_path / "{0..2}.zip")).index()
    assert index.classes == ["a", "b", "c"]
    assert np.bincount(index.labels).tolist() == [12, 12, 1]
    column = index.columns["image"]
    assert isinstance(column, ZipColumn)
    assert index.read(24).tobytes() == png(99)
    levels = sorted(np.frombuffer(data, np.uint8).tobytes() for data in column.read(np.arange(24)))
    assert levels == sorted([png(n) for n in range(12)] * 2)
    few = index.subset(np.array([24, 3]))
    assert few.read(0).tobytes() == png(99)
    assert few.read(1).tobytes() == index.read(3).tobytes()


def test_a_saved_index_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files_old(monkeypatch)
    path = small(tmp_path / "x.zip")
    first = Zip(shards=str(path)).index()
    monkeypatch.setattr("gpupipe.sources.zip.Zip.join", None)
    second = Zip(shards=str(path)).index()
    assert first.fingerprint == second.fingerprint
    assert not second.values
    assert all(first.read(i).tobytes() == second.read(i).tobytes() for i in range(len(first)))


def test_the_fingerprint_depends_on_the_content_and_not_on_the_place(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    one, two = small(tmp_path / "x.zip"), small(tmp_path / "d" / "x.zip")
    fingerprints = [Zip(shards=str(path)).index().fingerprint for path in (one, two)]
    small(two, zipfile.ZIP_DEFLATED, a__9=b"")
    write_zip(two, {f"{'ab'[n % 2]}/{n}.png": png(n + 1) for n in range(12)})
    assert fingerprints[0] == fingerprints[1] != Zip(shards=str(two)).index().fingerprint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": "c"}, r"no image \(.*\) in 1 archive under c: set data.folder"),
        ({"folder": "a"}, "a/0.png is in no class folder: set data.folder, or data.label to null"),
        ({"extensions": ["tif"]}, "no image .*data.extensions"),
    ],
    ids=str,
)
def test_what_is_not_there_is_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    path = small(tmp_path / "x.zip")
    with pytest.raises(DataError, match=f"{path}: .*{words}"):
        Zip(shards=str(path), **options).index()


def flip(path: Path, mark: bytes, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(mark) + offset] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("method", METHODS)
def test_verify_checks_every_crc(tmp_path: Path, method: str) -> None:
    path = small(tmp_path / "x.zip", METHODS[method])
    assert len(Zip(shards=str(path), verify=True).index()) == 12
    flip(path, b"b/3.png", 60)
    assert len(Zip(shards=str(path)).index()) == 12
    with pytest.raises(DataError, match=rf"{path}: b/3\.png: .*damaged.*; write the shard again"):
        Zip(shards=str(path), verify=True).index()


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_damaged_member_is_named_and_skipped(tmp_path: Path, options: dict[str, Any]) -> None:
    path = small(tmp_path / "x.zip")
    flip(path, b"b/3.png", 60)
    data = {"source": "zip", "shards": str(path)}
    with (
        load_data(data, pipeline=["decode"], **options) as loader,
        pytest.raises(SampleError, match=rf"{path}:b/3\.png: .*damaged"),
    ):
        list(loader)
    options = options | {"on_error": "skip", "max_bad": 0.1}
    with load_data(data, pipeline=["decode"], **options) as loader:
        assert sum(len(batch["id"]) for batch in loader) == 11


def read_all(column: ZipColumn) -> list[bytes]:
    return [data.tobytes() for data in column.read(np.arange(len(column)))]


def test_a_forked_process_reads_with_threads_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpupipe.dataset.reading.cores", lambda: 2)
    files = {f"a/{n}.png": png(n) for n in range(80)}
    path = write_zip(tmp_path / "x.zip", files, zipfile.ZIP_DEFLATED)
    column = Zip(shards=str(path)).index().columns["image"]
    assert isinstance(column, ZipColumn)
    expected = read_all(column)
    assert any(thread.name.startswith("gpupipe-read") for thread in threading.enumerate())
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(read_all, (column,)).get(60) == expected


def test_a_bomb_is_refused_by_its_declared_size_before_it_is_inflated(tmp_path: Path) -> None:
    """300 MB of zeros in 300 kB: the archive's directory says so, and nothing is allocated."""
    small = png(7)
    bomb = small + bytes(300_000_000)
    archive = write_zip(
        tmp_path / "a.zip", {"a/0.png": bomb, "a/1.png": small}, zipfile.ZIP_DEFLATED
    )
    data = {"source": "zip", "shards": str(archive), "max_bytes": "200MB", "verify": True}
    options: dict[str, Any] = {"engine": "cpu", "pipeline": ["decode"], "batch_size": 2}
    before = peak_memory()
    with load_data(data, **options) as loader, pytest.raises(SampleError) as error:
        list(loader)
    assert str(archive) in error.value.path
    assert "300,000,0" in error.value.reason
    assert "more than data.max_bytes=200,000,000" in error.value.reason
    with load_data(data, **options, on_error="skip", max_bad=0.5) as loader:
        (batch,) = loader
        assert batch["id"].tolist() == [1], "the others are delivered"
    assert peak_memory() - before < 150_000_000
    raised = data | {"max_bytes": "400MB", "verify": False}
    index = Zip(**{k: v for k, v in raised.items() if k != "source"}).index()
    assert len(index.read(0)) == len(bomb), "who wants it sets max_bytes"


def test_the_default_limit_follows_max_pixels(tmp_path: Path) -> None:
    archive = str(write_zip(tmp_path / "a.zip", {"a/0.png": png(7)}, zipfile.ZIP_DEFLATED))
    assert Zip(shards=archive).byte_limit == 3 * MAX_PIXELS
    assert Zip(shards=archive, max_pixels=None).byte_limit == 0
    with pytest.raises(ValueError, match=r"more than data\.max_bytes=30"):
        Zip(shards=archive, max_pixels=10).index().read(0)


def peak_memory() -> int:
    """The most memory in bytes that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_damaged_name_is_an_error_and_drops_no_sample(tmp_path: Path) -> None:
    """One flipped byte of '.png' in the directory hid the image."""
    path = write_zip(tmp_path / "a.zip", {"a/0.png": png(1), "a/1.png": png(2)})
    data = bytearray(path.read_bytes())
    data[data.rindex(b"a/1.png") + 4] ^= 0x04  # .png becomes .tng in the central directory alone
    path.write_bytes(data)
    with pytest.raises(DataError, match=rf"{path}: .*a/1\.tng is not at byte"):
        Zip(shards=str(path)).index()


@pytest.mark.parametrize("name", ["/a/0.png", "a/../../0.png"])
def test_names_that_are_no_relative_paths_are_refused(tmp_path: Path, name: str) -> None:
    archive = write_zip(tmp_path / "b.zip", {"a/1.png": png(1), name: png(2)})
    with pytest.raises(DataError, match=rf"{archive}: {name}: an archive has relative paths"):
        Zip(shards=str(archive)).index()
