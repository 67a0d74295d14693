"""A FIFO, or a link to a device, in the place of a file: it is named, and nothing waits for it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.dataset import index_cache
from gpupipe.errors import GpupipeError
from helpers.folders import grow

FILES = {
    "list.txt": {"source": "file_list", "file": "FILE"},
    "list.csv": {"source": "file_list", "file": "FILE"},
    "list.parquet": {"source": "file_list", "file": "FILE"},
    "a.tar": {"source": "webdataset", "shards": "FILE", "fields": {"image": "jpg"}},
    "a.tfrecord": {"source": "tfrecord", "shards": "FILE"},
    "a.rec": {"source": "recordio", "shards": "FILE"},
    "a.zip": {"source": "zip", "shards": "FILE"},
    "a.parquet": {"source": "parquet", "shards": "FILE"},
    "data.mdb": {"source": "lmdb", "path": "FILE"},
    "a.npy": {"source": "numpy", "files": "FILE"},
    "a.npz": {"source": "numpy", "files": "FILE"},
    "a.bin": {"source": "raw", "files": "FILE", "dtype": "uint8", "shape": [3]},
    "a.h5": {"source": "hdf5", "files": "FILE", "fields": {"image": "x"}},
    "arrays.txt": {"source": "numpy", "manifest": "FILE"},
    "dataset_info.json": {"source": "hf", "root": "FOLDER"},
    "state.json": {"source": "hf", "root": "FOLDER"},
    "a.arrow": {"source": "hf", "root": "FOLDER"},
}
MAKE: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


def fill(value: Any, file: Path) -> Any:
    """Put the file's path into a config."""
    if isinstance(value, dict):
        return {key: fill(part, file) for key, part in value.items()}
    return (
        {"FILE": str(file), "FOLDER": str(file.parent)}.get(value, value)
        if isinstance(value, str)
        else value
    )


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", FILES)
def test_in_the_place_of_what_a_source_reads(tmp_path: Path, name: str, kind: str) -> None:
    MAKE[kind](tmp_path / name)
    with pytest.raises(GpupipeError, match=str(tmp_path)):
        gpupipe.load(
            {"data": fill(FILES[name], tmp_path / name), "pipeline": ["decode"]}, device="cpu"
        )


@pytest.mark.parametrize("kind", MAKE)
def test_in_the_place_of_other_files_of_a_config(tmp_path: Path, kind: str) -> None:
    grow(tmp_path / "data", "a/1.jpg")
    MAKE[kind](tmp_path / "x.npy")
    MAKE[kind](tmp_path / "ids.txt")
    MAKE[kind](tmp_path / "p.yaml")
    data = {"source": "folder", "root": tmp_path / "data"}
    steps = [
        "decode",
        {
            "linear_transformation": {
                "transformation_matrix": str(tmp_path / "x.npy"),
                "mean_vector": [1.0],
            }
        },
    ]
    for config, options in (
        ({"data": data, "pipeline": steps}, {}),
        ({"data": data, "pipeline": ["decode"]}, {"subset": str(tmp_path / "ids.txt")}),
        ({"data": data, "pipeline": str(tmp_path / "p.yaml")}, {}),
        (str(tmp_path / "p.yaml"), {}),
    ):
        with pytest.raises(GpupipeError, match=r"not a regular file|no pipeline|no config"):
            gpupipe.load(config, device="cpu", **options)


@pytest.mark.parametrize("kind", MAKE)
def test_in_the_place_of_labels_and_a_saved_index(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    MAKE[kind](tmp_path / "labels.npy")
    data = {"source": "numpy", "files": str(tmp_path / "x.npy"), "rows": True}
    with pytest.raises(GpupipeError, match=r"labels\.npy: no such file"):
        gpupipe.load(
            {"data": data | {"labels": str(tmp_path / "labels.npy")}, "pipeline": []}, device="cpu"
        )
    saved = tmp_path / "saved.idx"
    MAKE[kind](saved)
    monkeypatch.setattr(index_cache, "get_path", lambda *key: saved)
    with gpupipe.load({"data": data, "pipeline": []}, device="cpu") as loader:
        assert len(loader.index) == 3
