"""What all sources of shards share: patterns, kept indexes, progress, and samples that turn out
broken when they are loaded.
"""

import io
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from tfrecord import TFRecordWriter

import gpupipe
from gpupipe.dataset import source
from gpupipe.dataset.labels import MAX_CLASSES
from helpers import loaders
from helpers.folders import make_files_old
from helpers.loaders import ENGINES
from helpers.stored_shards import write_tar

Write = Callable[[Path, list[bytes]], None]


def tar(path: Path, images: list[bytes]) -> None:
    with webdataset.TarWriter(str(path)) as sink:
        for n, image in enumerate(images):
            sink.write({"__key__": str(n), "jpg": image, "cls": n % 3})


def tfrecord(path: Path, images: list[bytes]) -> None:
    writer = TFRecordWriter(str(path))
    for n, image in enumerate(images):
        writer.write({"image/encoded": (image, "byte"), "image/class/label": (n % 3, "int")})
    writer.close()


def recordio(path: Path, images: list[bytes]) -> None:
    payloads = [struct.pack("<IfQQ", 0, n % 3, n, 0) + image for n, image in enumerate(images)]
    path.write_bytes(
        b"".join(struct.pack("<II", 0xCED7230A, len(p)) + p + bytes(-len(p) % 4) for p in payloads)
    )


def write_dali_index(shard: Path) -> Path:
    """Write the index of a shard by the tool of DALI that does, and return its path."""
    tool = "wds2idx" if shard.suffix == ".tar" else "tfrecord2idx"
    index = shard.with_suffix(".idx")
    subprocess.run([Path(sys.executable).with_name(tool), shard, index], check=True)
    return index


FORMATS: dict[str, Write] = {"webdataset": tar, "tfrecord": tfrecord, "recordio": recordio}
formats = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def images(faces: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(faces.glob("*/*.jpg"))[:12]]


def made(name: str, path: Path, images: list[bytes]) -> source.Source:
    FORMATS[name](path, images)
    return source.SOURCES.find(name)(**{"shards": str(path)})


def load_shard(name: str, path: Path, **options: Any) -> gpupipe.Loader:
    data = {"source": name, "shards": path}
    steps = ["decode", {"random_crop": {"size": 100}}]
    return loaders.load(None, steps, data=data, shuffle=False, batch_size=4, **options)


@formats
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_broken_sample_is_named_or_left_out(
    tmp_path: Path, images: list[bytes], name: str, options: dict[str, Any]
) -> None:
    FORMATS[name](
        tmp_path / "s", [b"no image" if n == 5 else image for n, image in enumerate(images)]
    )
    with load_shard(name, tmp_path / "s", **options) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(
            gpupipe.SampleError, match=f"^{tmp_path}/s:5: .*not an image in a known format"
        ):
            next(iterator)
    with load_shard(name, tmp_path / "s", on_error="skip", max_bad=0.5, **options) as loader:
        assert sorted(i for b in loader for i in b["id"].tolist()) == [
            n for n in range(12) if n != 5
        ]


@formats
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_shard_that_is_cut_off_behind_the_index_is_an_error(
    tmp_path: Path, images: list[bytes], name: str, options: dict[str, Any]
) -> None:
    FORMATS[name](tmp_path / "s", images)
    with load_shard(name, tmp_path / "s", **options) as loader:
        content = (tmp_path / "s").read_bytes()
        (tmp_path / "s").unlink()
        (tmp_path / "s").write_bytes(content[: len(content) // 2])
        with pytest.raises(
            gpupipe.SampleError,
            match=rf"/s:\d+: .*{tmp_path}/s ends [\d,]+ bytes before the sample does",
        ):
            list(loader)


@formats
def test_an_index_is_kept_until_a_shard_changes(
    tmp_path: Path, images: list[bytes], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    said: list[tuple[str, int, int | None]] = []
    data = made(name, tmp_path / "s", images)
    first = data.index(lambda *told: said.append(told))
    assert said == [("indexing shards", 1, 1)]
    again = data.index(lambda *told: said.append(told))
    assert len(said) == 1
    assert [again.columns["image"].span(i) for i in range(12)] == [
        first.columns["image"].span(i) for i in range(12)
    ]
    assert (again.fingerprint, again.classes, again.labels.tolist()) == (
        first.fingerprint,
        first.classes,
        first.labels.tolist(),
    )
    FORMATS[name](tmp_path / "s", images[:7])
    assert len(data.index(lambda *told: said.append(told))) == 7
    assert len(said) == 2


def test_an_idx_file_that_comes_or_changes_is_noticed(
    tmp_path: Path, images: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    data = made("recordio", tmp_path / "s.rec", images)
    offsets = [data.index().columns["image"].span(i).offset - 32 for i in range(12)]
    for count in (5, 3):
        (tmp_path / "s.idx").write_text(
            "".join(f"{n}\t{offset}\n" for n, offset in enumerate(offsets[:count]))
        )
        assert len(data.index()) == count


@formats
def test_shards_are_read_in_the_order_of_their_names(
    tmp_path: Path, images: list[bytes], name: str
) -> None:
    for n in range(3):
        FORMATS[name](tmp_path / f"s-{n:03}", images[: n + 1])
    told: list[int] = []
    index = source.SOURCES.find(name)(**{"shards": f"{tmp_path}/s-{{000..002}}"}).index(
        lambda what, done, total: told.append(done)
    )
    assert [index.location(i) for i in range(6)] == [
        f"{tmp_path}/s-{n:03}:{i}" for n in range(3) for i in range(n + 1)
    ]
    assert [index.read(i).tobytes() for i in range(6)] == [
        images[i] for n in range(3) for i in range(n + 1)
    ]
    assert told == [1, 2, 3]


@formats
def test_a_broken_shard_among_many_is_named(tmp_path: Path, images: list[bytes], name: str) -> None:
    for n in range(20):
        FORMATS[name](tmp_path / f"s-{n:03}", images[:1])
    (tmp_path / "s-007").write_bytes((tmp_path / "s-007").read_bytes()[:-9900])
    with pytest.raises(
        gpupipe.DataError,
        match=f"^{tmp_path}/s-007: cut off.*; write the shard again, or leave it out of "
        "data.shards",
    ):
        source.SOURCES.find(name)(**{"shards": f"{tmp_path}/s-*"}).index()


@formats
def test_shards_that_are_not_there(tmp_path: Path, name: str) -> None:
    for pattern, said in (
        ("none", "no such shard: put it there"),
        ("s-*", "no such shard"),
        ("s-{5..2}", r"\{5\.\.2\} should count upwards"),
        ("s-{0..99999999}", "should count upwards, to at most 1,000,000 shards"),
    ):
        data = source.SOURCES.find(name)(**{"shards": f"{tmp_path}/{pattern}"})
        for call in (data.index, data.explain_absence):
            with pytest.raises(gpupipe.DataError, match=said):
                call()


def test_a_label_that_would_make_millions_of_classes(tmp_path: Path) -> None:
    writer = TFRecordWriter(str(tmp_path / "s"))
    writer.write({"image/encoded": (b"x", "byte"), "image/class/label": (MAX_CLASSES, "int")})
    writer.close()
    with pytest.raises(
        gpupipe.DataError,
        match=rf"s:0: the label '{MAX_CLASSES}' is too large: a number is that of a class, below "
        r"10,000,000",
    ):
        source.SOURCES.find("tfrecord")(**{"shards": str(tmp_path / "s")}).index()


@pytest.mark.parametrize(
    ("name", "file"), [("webdataset", "a.tar"), ("tfrecord", "train-00000-of-00001")]
)
@pytest.mark.parametrize("text", [None, b"", b"v1.2 -1\n\xff"], ids=["DALI's", "empty", "damaged"])
def test_an_index_of_dali_beside_a_shard_changes_nothing(
    name: str, file: str, text: bytes | None, images: list[bytes], tmp_path: Path
) -> None:
    alone = made(name, tmp_path / file, images).index()
    beside = write_dali_index(tmp_path / file)
    if text is not None:
        beside.write_bytes(text)
    source_of_all = source.SOURCES.find(name)(**{"shards": str(tmp_path / "*")})
    assert "image" in source_of_all.specs()
    index = source_of_all.index()
    assert [bytes(index.read(n)) for n in range(len(index))] == images
    assert index.labels.tolist() == alone.labels.tolist()
    assert [index.names[n] for n in range(len(index))] == [alone.names[n] for n in range(12)]


def test_the_type_of_arrays_is_read_from_a_shard_and_not_from_its_index(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros((2, 3), np.float32))
    write_tar(tmp_path / "a.tar", [{"npy": array.getvalue()}])
    (tmp_path / "a.idx").write_text("v1.2 1\nnpy 512 152 s/000000.npy\n")
    options: dict[str, Any] = {"shards": f"{tmp_path}/a*", "fields": {"x": "npy"}, "label": None}
    assert source.SOURCES.find("webdataset")(**options).specs()["x"].dtype == "float32"
