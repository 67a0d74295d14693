"""`source: zarr`: what every engine delivers, and mistakes in a config."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gpupipe.errors import DataError
from gpupipe.sources.zarr import Zarr
from helpers.array_stores import COUNT, IMAGES, LABELS, SHAPE
from helpers.folders import make_files_old
from helpers.loaders import load

ENGINES: list[dict[str, Any]] = [
    {"engine": "cpu", "threads": 2},
    {"engine": "dali"},
    {"engine": "dataloader", "workers": 0},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.create_array("images", data=IMAGES, chunks=(2, *SHAPE), shards=(8, *SHAPE))
    group.create_array("labels", data=LABELS, chunks=(7,))
    return path


def test_engines_deliver_the_same_batches(path: Path) -> None:
    data = {"source": "zarr", "stores": str(path), "fields": {"image": "images"}, "layout": "HWC"}
    every = []
    for engine in ENGINES:
        options = data | {"label": "labels", "order": "chunks"}
        steps = ["random_vertical_flip"]
        with load(None, steps, data=options, batch_size=8, seed=3, **engine) as loader:
            every.append(list(loader))
    for batches in zip(*every, strict=True):
        for batch in batches[1:]:
            assert all(np.array_equal(batch[name], batches[0][name]) for name in batches[0])
        for n, row in enumerate(batches[0]["id"].tolist()):
            image = batches[0]["image"][n].numpy()
            assert any(np.array_equal(image, turned) for turned in (IMAGES[row], IMAGES[row][::-1]))
            assert batches[0]["label"][n] == LABELS[row]
    assert sorted(row for batch in every[0] for row in batch["id"].tolist()) == list(range(COUNT))


def test_a_chunk_that_is_written_again_is_noticed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    make_files_old(monkeypatch)
    options: dict[str, Any] = {"stores": str(path), "fields": {"image": "images"}}
    first = Zarr(**options).index()
    assert len(list((tmp_path / "cache/index").iterdir())) == 1
    assert Zarr(**options).index().fingerprint == first.fingerprint
    zarr.open_group(path, mode="r+")["images"][3] = 7
    index = Zarr(**options).index()
    assert index.read(3).tolist() == [7] * len(IMAGES[3].reshape(-1))
    assert np.array_equal(index.read(4), IMAGES[4].reshape(-1))


def test_stores_are_folders(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    messages = {"none.zarr": "no such folder: put a store there, or set data.stores"}
    messages |= {"file": "this is a file, and no folder or .zip"}
    for name, message in messages.items():
        with pytest.raises(DataError, match=message):
            Zarr(stores=str(tmp_path / name), fields={"image": "x"}).index()
    index = Zarr(stores=str(tmp_path / "*.zarr"), fields={"image": "images"}).index()
    assert len(index) == COUNT
    path.rename(tmp_path / "folder.zarr.zip")
    named = Zarr(stores=str(tmp_path / "*.zip"), fields={"image": "images"}).index()
    assert bytes(named.read(3)) == IMAGES[3].tobytes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: zarr cannot open it: No group found"):
        Zarr(stores=str(tmp_path / "empty"), fields={"image": "x"}).index()
