"""Samples that are parts of files: memory maps, of which only so many stay open."""

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index, build, spans_of
from gpupipe.engines.dali import field_readers
from gpupipe.engines.dali.field_readers import CannotReadError, MmapReader


@pytest.fixture
def shards(faces: Path, tmp_path: Path) -> Path:
    """A shard for each of 60 faces."""
    for n, file in enumerate(sorted(faces.glob("*/*.jpg"))):
        with tarfile.open(tmp_path / f"{n:02}.tar", "w") as tar:
            tar.add(file, f"{n:02}.jpg")
    return tmp_path


def mapped_here(folder: Path) -> int:
    """How many files of a folder are mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        return len({line.rstrip().rpartition(" ")[2] for line in f if f"{folder}/" in line})


def test_what_is_in_flight_stays_mapped_and_no_more(
    faces: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_readers, "_MAX_OPEN", 1)
    options: dict[str, Any] = {"engine": "dali", "device": "cpu", "prefetch": 2}
    options |= {"batch_size": 6, "shuffle": False}
    data = {"source": "webdataset", "shards": str(shards / "*.tar"), "label": None}
    with gpupipe.load({"data": data, "pipeline": ["decode"]}, **options) as found:
        with gpupipe.load(
            {"data": {"source": "folder", "root": faces}, "pipeline": ["decode"]}, **options
        ) as expected:
            most = 0
            for a, b in zip(found, expected, strict=True):
                assert torch.equal(a["image"], b["image"])
                most = max(most, mapped_here(shards))
        list(found)
    assert 0 < most < 40
    assert mapped_here(shards) <= 1


def arrays(folder: Path, *values: list[float]) -> Index:
    """Of arrays in files of their own, behind a byte each."""
    for n, numbers in enumerate(values):
        (folder / str(n)).write_bytes(b"x" + np.array(numbers, np.float32).tobytes())
    rows, lengths = np.arange(len(values), dtype=np.int64), np.array([4 * len(v) for v in values])
    shapes = np.array([[len(v)] for v in values])
    column = SpanColumn(
        str(folder),
        StringArray.from_strings(map(str, rows)),
        rows.astype(np.int32),
        rows * 0 + 1,
        lengths,
        ArrayLayout("float32", None, shapes),
    )
    return build("", [f"{n}" for n in rows], rows * 0, ["0"], columns={"array": column})


def test_arrays_have_the_shapes_of_the_index_and_are_not_copied(tmp_path: Path) -> None:
    index = arrays(tmp_path, [1, 2, 3], [4])
    found = MmapReader(spans_of(index, "array")).read_arrays(np.array([1, 0, 1]))
    assert [f.tolist() for f in found] == [[4.0], [1.0, 2.0, 3.0], [4.0]]
    assert all(
        f.dtype == np.float32 and not f.flags.owndata and not f.flags.writeable for f in found
    )


@pytest.mark.parametrize(
    "harm",
    [lambda f: os.truncate(f, 10), lambda f: os.truncate(f, 0), os.unlink],
    ids=["cut off", "empty", "gone"],
)
def test_what_is_not_there_is_named(tmp_path: Path, harm: Any) -> None:
    index = arrays(tmp_path, [1, 2, 3], [4, 5, 6])
    harm(tmp_path / "1")
    found = MmapReader(spans_of(index, "array"))
    assert found.read_arrays(np.array([0]))[0].tolist() == [1, 2, 3]
    with pytest.raises(
        CannotReadError,
        match=r"1 ends \d+ bytes before the sample does: it changed since it was indexed",
    ):
        found.read_arrays(np.array([0, 1]))
