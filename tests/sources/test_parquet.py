import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import gpupipe
from gpupipe.errors import DataError
from gpupipe.sources.parquet import Parquet
from helpers.folders import make_files_old
from helpers.full_product import IS_FULL
from helpers.image_files import npy

COUNT = 150
"""More than are read at once."""


def png(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (8, 8), level).save(stream, "PNG")
    return stream.getvalue()


def write(path: Path, first: int = 0, **more: Any) -> Path:
    rows = range(first, first + COUNT)
    columns = {
        "image": [{"bytes": png(n % 256), "path": f"{n}.png"} for n in rows],
        "label": [n % 3 for n in rows],
    }
    pa.parquet.write_table(pa.table(columns | more), path, row_group_size=70)
    return path


def test_rows_of_several_files_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a-0.parquet")
    write(tmp_path / "a-1.parquet", COUNT)
    source = Parquet(shards=str(tmp_path / "a-*.parquet"))
    for _ in range(2):  # read, then from the cache
        index = source.index()
        assert len(index) == 2 * COUNT
        assert index.labels.tolist() == [n % 3 for n in range(2 * COUNT)]
        assert index.classes == ["0", "1", "2"]
        for row in (0, 69, 70, 149, 150, 299):
            assert index.read(row).tobytes() == png(row % 256)
    assert f"{tmp_path}/a-1.parquet:row 3" in index.location(COUNT + 3)


def test_further_fields_values_and_names_as_labels(tmp_path: Path) -> None:
    more = {
        "label": ["b" if n % 2 else "a" for n in range(COUNT)],
        "mask": [png(255 - n) for n in range(COUNT)],
        "w": [n / 2 for n in range(COUNT)],
    }
    path = write(tmp_path / "x.parquet", **more)
    source = Parquet(shards=str(path), fields={"image": "image", "m": "mask"}, values={"w": "w"})
    index = source.index()
    assert index.classes == ["a", "b"]
    assert index.values["w"].tolist() == more["w"]
    assert [index.read(i, "m").tobytes() == png(255 - i) for i in range(COUNT)] == [True] * COUNT
    assert [index.read(i).tobytes() == png(i) for i in range(COUNT)] == [True] * COUNT


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_batches(tmp_path: Path, engine: str) -> None:
    data = {"source": "parquet", "shards": str(write(tmp_path / "x.parquet"))}
    config = {"data": data, "pipeline": [{"decode": {"mode": "gray"}}]}
    settings = {"engine": engine, "device": "cpu", "workers": 0, "ids": True, "batch_size": 50}
    with gpupipe.load(config, **settings) as loader:
        for batch in loader:
            assert (batch["image"].amax((1, 2, 3)).numpy() == batch["id"].numpy() % 256).all()


def test_a_change_is_noticed_and_so_is_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    path = write(tmp_path / "x.parquet")
    source = Parquet(shards=str(path))
    column: Any = source.index().columns["image"]
    Path(column.path(0)).unlink()
    assert source.index().read(3).tobytes() == png(3)
    write(path, 7)
    assert source.index().read(0).tobytes() == png(7)


@pytest.mark.parametrize(
    ("options", "more", "words"),
    [
        ({"label": "labl"}, {}, "no column 'labl'; did you mean 'label'"),
        (
            {"fields": {"image": "where"}},
            {"where": ["x"] * COUNT},
            "no image files: .*a list of paths",
        ),
        ({}, {"label": [None] * COUNT}, "no value in the column 'label'"),
        ({}, {"label": [0.5] * COUNT}, "holds double, but should hold whole"),
        ({"values": {"v": "v"}}, {"v": ["x"] * COUNT}, "holds string, but should hold numbers"),
    ],
    ids=["label", "paths", "nulls", "floats", "texts"],
)
def test_what_is_wrong_is_named_with_its_file(
    tmp_path: Path, options: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "x.parquet", **more)
    with pytest.raises(DataError, match=f"^{path}: .*{words}"):
        Parquet(shards=str(path), **options).index()


def test_any_change_of_a_byte_is_a_result_or_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        for place in draw.integers(0, len(data), 3):
            data[place] = draw.integers(0, 256)
        path.write_bytes(bytes(data[: draw.integers(len(data) // 2, len(data) + 1)]))
        try:
            assert len(Parquet(shards=str(path)).index()) > 0
        except DataError as e:
            assert str(e).startswith(f"{path}: ")


def test_a_damaged_footer_asks_for_bytes_of_the_file_or_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    length, errors = 8 + int.from_bytes(whole[-8:-4], "little"), 0
    for _ in range(2000 if IS_FULL else 100):
        data = bytearray(whole)
        for place in draw.integers(1, length + 1, draw.integers(1, 5)):
            data[-place] = draw.integers(0, 256)
        try:
            parts = Parquet(shards=str(path)).cut_file(io.BytesIO(bytes(data)), 100)
        except ValueError:
            errors += 1
        else:
            assert all(part.samples > 0 and part.beside >= 0 for part in parts)
            ranges = [one for part in parts for one in part.ranges]
            assert all(4 <= begin <= end <= len(data) for begin, end in ranges)
    assert errors > 50


def test_rows_that_are_damaged_are_blamed_on_the_shard_and_not_on_the_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet")
    with pa.parquet.ParquetFile(path) as table:
        page = table.metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page : page + 40] = b"\xff" * 40
    path.write_bytes(content)
    words = "row group 1 cannot be read: .*; write the shard again, or leave it out of data.shards"
    with pytest.raises(DataError, match=f"^{path}: {words}"):
        Parquet(shards=str(path)).index()


def test_the_fields_have_the_names_of_the_yaml(tmp_path: Path) -> None:
    source = Parquet(shards=str(write(tmp_path / "x.parquet")), fields={"photo": "image"})
    assert list(source.specs()) == list(source.index().columns) == ["photo"]


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    """200 MB of zeros in a file of some kB, as its metadata says."""
    path = tmp_path / "bomb.parquet"
    table = pa.table({"image": [bytes(200_000_000), png(1)], "label": [0, 1]})
    pa.parquet.write_table(table, path, compression="zstd")
    assert path.stat().st_size < 100_000
    message = rf"{path}: row group 0: .*200,000,.*more than data\.max_bytes=50,000,000"
    with pytest.raises(DataError, match=message.replace("200,000,", "100,000,")):
        Parquet(shards=str(path), max_bytes="50MB").index()


def test_one_image_above_the_limit_is_named_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"image": [png(1), bytes(5000), png(2)], "label": [0, 1, 1]})
    pa.parquet.write_table(table, path)
    message = rf"{path}: row 1: an image file of 5,000 bytes, more than data\.max_bytes=4,000"
    with pytest.raises(DataError, match=message):
        Parquet(shards=str(path), max_bytes=4000).index()
    assert len(Parquet(shards=str(path), max_bytes=5000).index()) == 3


def test_arrays_are_npy_files_of_one_dtype(tmp_path: Path) -> None:
    arrays = [np.full((2, 3 + n % 2), n, np.float32) for n in range(COUNT)]
    path = write(tmp_path / "x.parquet", volume=[npy(array) for array in arrays])
    field: dict[str, Any] = {"column": "volume", "dtype": "float32", "shape": [2, None]}
    source = Parquet.model_validate({"shards": str(path), "fields": {"image": "image", "v": field}})
    index = source.index()
    assert source.specs()["v"].shape == (2, None)
    (content,) = index.columns["v"].read(np.array([71]))
    assert np.array_equal(content.view(np.float32).reshape(2, 4), arrays[71])
    assert index.columns["image"].read(np.array([71]))[0].tobytes() == png(71)
    offsets = index.columns["v"].offset  # type: ignore[attr-defined]
    assert not (offsets % 64).any()
    for change, said in (
        ({"dtype": "uint8"}, "row 0: an array of float32, where uint8 was expected"),
        ({"shape": [2, 3]}, r"row 1: an array of shape .*2, 4.*, where .*2, 3"),
        ({"column": "image"}, "row 0: no .npy file"),
    ):
        wrong = {"shards": str(path), "fields": {"v": field | change}}
        with pytest.raises(DataError, match=rf"x\.parquet: .*{said}"):
            Parquet.model_validate(wrong).index()


def test_what_is_unpacked_depends_on_which_columns_are_arrays(tmp_path: Path) -> None:
    files = [npy(np.full(3 + n % 5, n, np.uint8)) for n in range(COUNT)]
    path = write(tmp_path / "x.parquet", u=files, v=files)

    def array(column: str) -> dict[str, Any]:
        return {"column": column, "dtype": "uint8", "shape": [None]}

    settings: list[dict[str, Any]] = [{"i": "u", "a": array("v")}, {"a": array("u"), "i": "v"}]
    indexes = [
        Parquet.model_validate({"shards": str(path), "fields": fields}).index()
        for fields in settings
    ]
    for index in indexes:
        images, arrays = (index.columns[name].read(np.arange(COUNT)) for name in ("i", "a"))
        assert [image.tobytes() for image in images] == files
        assert [content.tolist() for content in arrays] == [[n] * (3 + n % 5) for n in range(COUNT)]
