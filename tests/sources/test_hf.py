import json
import multiprocessing
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

import gpupipe
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.errors import DataError
from gpupipe.sources.helpers import row_groups
from gpupipe.sources.helpers.row_groups import RowGroupColumn, UnpackedColumn
from gpupipe.sources.hf import Hf
from gpupipe.testing import check_loader
from helpers.beside_folders import ENGINES, assert_same_as_folder, load_data
from helpers.folders import make_files_old
from helpers.zip_files import png

COUNT = 60

datasets.disable_progress_bars()


def make(images: list[bytes], labels: list[int], names: list[str], **more: Any) -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    kinds = {name: datasets.Value("float32") for name in more}
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": labels}
    return datasets.Dataset.from_dict(rows | more, features=datasets.Features(features | kinds))


def small(count: int = COUNT, first: int = 0) -> Any:
    rows = range(first, first + count)
    images, labels = [png(n) for n in rows], [n % 2 for n in rows]
    return make(images, labels, ["cat", "dog", "emu"], w=[n / 2 for n in rows])


LAYOUTS = ["arrow", "parquet", "unpacked"]


def write_faces(faces: Path, folder: Path, layout: str, count: int = COUNT) -> dict[str, Any]:
    """Write the first faces in the order of ImageFolder, in two files. Returns `data:`."""
    paths = [p for folder in sorted(faces.glob("*")) for p in sorted(folder.glob("*.jpg"))][:count]
    names = sorted(folder.name for folder in faces.iterdir() if folder.is_dir())
    labels = [names.index(p.parent.name) for p in paths]
    every = make([p.read_bytes() for p in paths], labels, names)
    if layout == "arrow":
        every.save_to_disk(str(folder), num_shards=2)
    else:
        for n in range(2):
            file = folder / "data" / f"train-{n:05}-of-00002.parquet"
            every.shard(2, n, contiguous=True).to_parquet(str(file), batch_size=11)
    unpack = "never" if layout == "parquet" else "auto"
    return {"source": "hf", "root": str(folder), "row_groups": 3, "unpack": unpack}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_data_set_is_the_same_as_its_folder(
    faces: Path, tmp_path: Path, options: dict[str, Any], layout: str
) -> None:
    faces_set = write_faces(faces, tmp_path / "x", layout)
    assert_same_as_folder(faces_set, faces, options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_contract_of_a_loader_holds(faces: Path, tmp_path: Path, layout: str) -> None:
    faces_set = write_faces(faces, tmp_path / "x", layout, 20)
    check_loader(lambda **changes: load_data(faces_set, **{"engine": "cpu", **changes}))


@pytest.mark.parametrize("kind", ["dict", "one", "hub", "folders", "config", "cache"])
def test_every_layout_is_found(tmp_path: Path, kind: str) -> None:
    root, every, few = tmp_path / "x", small(), small(5)
    if kind == "dict":
        datasets.DatasetDict({"train": every, "test": few}).save_to_disk(str(root))
    elif kind in ("one", "cache"):
        every.save_to_disk(str(root), num_shards=3)
        if kind == "cache":
            for n in range(3):
                name = f"data-{n:05}-of-00003.arrow"
                (root / name).rename(root / f"x-train-{n:05}-of-00003.arrow")
            (root / "state.json").unlink()
    else:
        names = {
            "hub": "data/{}-00000-of-00001.parquet",
            "config": "plain/{}-00000-of-00001.parquet",
            "folders": "{}/0.parquet",
        }
        for split, rows in (("train", every), ("test", few)):
            rows.to_parquet(str(root / names[kind].format(split)))
    index = Hf(root=root, values={"w": "w"}).index()
    assert len(index) == COUNT
    assert index.classes == ["cat", "dog", "emu"]
    assert index.labels.tolist() == [n % 2 for n in range(COUNT)]
    assert index.values["w"].tolist() == [n / 2 for n in range(COUNT)]
    assert [index.read(n).tobytes() for n in range(COUNT)] == [png(n) for n in range(COUNT)]
    arrow = kind in ("dict", "one", "cache")
    assert isinstance(index.columns["image"], SpanColumn if arrow else RowGroupColumn)
    if kind not in ("one", "cache"):
        assert len(Hf(root=root, split="test").index()) == 5
        with pytest.raises(DataError, match=f"{root}: no split 'tset'; did you mean 'test'"):
            Hf(root=root, split="tset").index()


def test_rows_that_were_selected_and_bytes_without_structs(tmp_path: Path) -> None:
    small().select([3, 40, 1]).save_to_disk(str(tmp_path / "x"))
    index = Hf(root=tmp_path / "x").index()
    assert [index.read(n).tobytes() for n in range(3)] == [png(3), png(40), png(1)]
    table = pa.table({"image": pa.array([png(1), png(2)], pa.large_binary()), "y": ["b", "a"]})
    (tmp_path / "y").mkdir()
    with pa.ipc.new_file(tmp_path / "y" / "a.arrow", table.schema) as out:
        out.write_table(table)
    index = Hf(root=tmp_path / "y", label="y").index()
    assert (index.classes, index.labels.tolist()) == (["a", "b"], [1, 0])
    assert index.read(1).tobytes() == png(2)


def test_only_so_many_row_groups_are_held(tmp_path: Path) -> None:
    small().to_parquet(str(tmp_path / "train.parquet"), batch_size=10)
    column = Hf(root=tmp_path, row_groups=2, unpack="never").index().columns["image"]
    assert isinstance(column, RowGroupColumn)
    row_groups.groups.clear()
    rows = np.random.default_rng(0).permutation(COUNT)
    assert [data.tobytes() for data in column.read(rows)] == [png(int(n)) for n in rows]
    assert row_groups.groups.weight == 2
    few = column.take(np.array([33, 4]))
    assert [data.tobytes() for data in few.read(np.arange(2))] == [png(33), png(4)]


def unpacked_files(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (cache / "index").glob("*.parts")}


def test_as_many_row_groups_as_are_held_are_not_unpacked(tmp_path: Path) -> None:
    small().to_parquet(str(tmp_path / "train.parquet"), batch_size=10)
    assert isinstance(Hf(root=tmp_path, row_groups=6).index().columns["image"], RowGroupColumn)
    assert isinstance(Hf(root=tmp_path, row_groups=5).index().columns["image"], UnpackedColumn)


def test_more_row_groups_than_are_held_are_unpacked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("GPUPIPE_CACHE", str(cache))
    root = tmp_path / "x"
    for n in range(2):
        file = str(root / f"train-0000{n}-of-00002.parquet")
        small().shard(2, n, contiguous=True).to_parquet(file, batch_size=7)
    held, kept = Hf(root=root).index(), Hf(root=root, row_groups=2, unpack="never").index()
    assert unpacked_files(cache) == {}
    seen: list[tuple[str, int, int | None]] = []
    index = Hf(root=root, row_groups=2).index(lambda *words: seen.append(words))
    assert seen[-1] == ("unpacking", 2, 2)
    assert isinstance(index.columns["image"], UnpackedColumn)
    assert held.fingerprint == kept.fingerprint == index.fingerprint
    assert [index.read(n).tobytes() for n in range(COUNT)] == [png(n) for n in range(COUNT)]
    written = unpacked_files(cache)
    assert len(written) == 2
    last = root / "train-00001-of-00002.parquet"
    assert index.location(COUNT - 1) == held.location(COUNT - 1)
    assert index.location(COUNT - 1) == f"{last}:row {COUNT // 2 - 1}"
    few = index.columns["image"].take(np.array([33, 4]))
    assert [data.tobytes() for data in few.read(np.arange(2))] == [png(33), png(4)]
    assert few.location(0, "row 8") == f"{last}:row 8"

    next(iter((cache / "index").glob("*.parts"))).write_bytes(b"cut")
    again = Hf(root=root, unpack="always").index()
    assert [again.read(n).tobytes() for n in range(COUNT)] == [png(n) for n in range(COUNT)]
    assert sum(written[name] != time for name, time in unpacked_files(cache).items()) == 1


def test_a_damaged_row_group_and_a_full_disk_are_named_when_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "x", tmp_path / "x" / "train.parquet"
    small().to_parquet(str(file), batch_size=7)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match=r"cannot be written .*data.unpack=never.*GPUPIPE_CACHE"):
        Hf(root=root, unpack="always").index()
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    start = pyarrow.parquet.ParquetFile(file).metadata.row_group(3).column(0).data_page_offset
    with file.open("r+b") as out:
        out.seek(start)
        out.write(b"\xff" * 300)
    with pytest.raises(DataError, match=rf"{file}: row group 3 cannot be read"):
        Hf(root=root, unpack="always").index()
    assert unpacked_files(tmp_path / "cache") == {}


def read_all(column: RowGroupColumn) -> list[bytes]:
    return [data.tobytes() for data in column.read(np.arange(len(column)))]


def test_a_forked_process_reads_row_groups(tmp_path: Path) -> None:
    small().to_parquet(str(tmp_path / "train.parquet"), batch_size=10)
    column = Hf(root=tmp_path).index().columns["image"]
    assert isinstance(column, RowGroupColumn)
    expected = read_all(column)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(read_all, (column,)).get(60) == expected


def test_a_saved_index_is_used_until_the_data_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    small().save_to_disk(str(tmp_path / "x"))
    first = Hf(root=tmp_path / "x").index()
    second = Hf(root=tmp_path / "x").index()
    assert first.fingerprint == second.fingerprint
    assert second.read(7).tobytes() == png(7)
    small(first=9).save_to_disk(str(tmp_path / "y"))
    for path in (tmp_path / "y").iterdir():
        path.replace(tmp_path / "x" / path.name)
    assert Hf(root=tmp_path / "x").index().read(7).tobytes() == png(16)


def arrow_file(folder: Path, **columns: Any) -> Path:
    folder.mkdir(exist_ok=True)
    table = pa.table({"image": [png(1)], "label": [0]} | columns)
    with pa.ipc.new_stream(folder / "a.arrow", table.schema) as out:
        out.write_table(table)
    return folder


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({}, {"label": "labl"}, "no column 'labl'; did you mean 'label'"),
        ({"image": ["a.jpg"]}, {}, "holds string, and no image files: see data.fields"),
        ({"image": [{"bytes": None, "path": "a.jpg"}]}, {}, "holds no image file but only a path"),
        ({"image": pa.array([None], pa.binary())}, {}, "a row of the column 'image' holds no"),
        ({"label": [0.5]}, {}, "holds double, but should hold whole"),
        ({"label": pa.array([None], pa.int64())}, {}, "no value in the column 'label'"),
        ({"label": [-1]}, {}, "negative"),
        ({}, {"values": {"v": "image"}}, "holds .*, but should hold numbers"),
    ],
    ids=["column", "paths", "path", "null", "float", "no label", "negative", "value"],
)
def test_what_is_wrong_is_named_with_its_file(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    root = arrow_file(tmp_path / "x", **columns)
    if "bytes" in str(columns):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        root = arrow_file(tmp_path / "x", image=pa.array(columns["image"], kind))
    with pytest.raises(DataError, match=f"^{root}/a.arrow: ?.*{words}"):
        Hf(root=root, **options).index()


def test_files_that_are_missing_or_not_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        Hf(root=tmp_path / "x").index()
    with pytest.raises(DataError, match="no data set of Hugging Face"):
        Hf(root=tmp_path).index()
    small().save_to_disk(str(tmp_path / "x"))
    with pytest.raises(DataError, match="it has no splits: leave data"):
        Hf(root=tmp_path / "x", split="train").index()
    (tmp_path / "x" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow: no such file, though"):
        Hf(root=tmp_path / "x").index()
    for content in ({"_data_files": [{"filename": "../a.arrow"}]}, {}, []):
        (tmp_path / "x" / "state.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"state\.json: it lists no files of data"):
            Hf(root=tmp_path / "x").index()


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
def test_any_change_of_a_byte_is_a_result_or_an_error(tmp_path: Path, suffix: str) -> None:
    if suffix == "arrow":
        arrow_file(tmp_path, image=[png(n) for n in range(20)], label=[n % 3 for n in range(20)])
    else:
        small(20).to_parquet(str(tmp_path / "a.parquet"))
    path = tmp_path / f"a.{suffix}"
    whole, draw, taken = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        data = bytearray(whole)
        for place in draw.integers(0, len(data), 3):
            data[place] = draw.integers(0, 256)
        size = draw.integers(len(data) // 2, len(data) + 1) if draw.random() < 0.3 else len(data)
        path.write_bytes(bytes(data[:size]))
        try:
            index = Hf(root=tmp_path).index()
        except DataError as e:
            assert str(tmp_path) in str(e)
            continue
        taken += 1
        column = index.columns["image"]
        for row in range(len(index)):
            span = column.span(row)
            assert span is None or (span.length or 0) + span.offset <= len(data)
    assert taken > 10


def test_a_damaged_footer_is_a_result_or_an_error(tmp_path: Path) -> None:
    path, draw, errors = tmp_path / "a.parquet", np.random.default_rng(0), 0
    small(20).to_parquet(str(path), batch_size=7)
    whole = path.read_bytes()
    length = 8 + int.from_bytes(whole[-8:-4], "little")
    for _ in range(100):
        data = bytearray(whole)
        for place in draw.integers(1, length + 1, draw.integers(1, 5)):
            data[-place] = draw.integers(0, 256)
        path.write_bytes(data)
        try:
            Hf(root=tmp_path, unpack="never").index().read(0)
        except (DataError, ValueError):
            errors += 1
    assert 20 < errors < 100


@pytest.mark.parametrize("unpack", ["always", "never"])
def test_a_row_group_that_inflates_beyond_the_limit_is_refused(tmp_path: Path, unpack: str) -> None:
    table = pa.table({"image": [bytes(90_000_000)], "label": [0]})
    pa.parquet.write_table(table, tmp_path / "train.parquet", compression="zstd")
    data = {"root": str(tmp_path), "unpack": unpack, "max_bytes": "20MB"}
    message = r"row group 0: .* 90,000,\d+ bytes, more than data\.max_bytes=20,000,000"
    with pytest.raises((gpupipe.DataError, ValueError), match=message):
        Hf(**data).index().read(0)
