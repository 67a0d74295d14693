"""Compressed chunks of HDF5 shards through the cache."""

import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import gpupipe
from gpupipe.cache.stored_chunks import StoredChunkColumn
from gpupipe.cache.stored_fill import name_of
from gpupipe.cache.stored_samples import SampleTable
from helpers.array_stores import IMAGES, SHAPE
from helpers.cached_loading import Config, load
from helpers.full_product import IS_FULL

CHUNK = 4
SEED = 3
"""With this, the first of two shards comes first."""
STARTS = (0, 9, 15)
COUNTS = (9, 6, 7)
DATA: dict[str, Any] = {"fields": {"image": "images"}, "label": "labels"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IMAGES in 3 files: in shuffled and compressed chunks, contiguous, and in cut chunks."""
    root = tmp_path_factory.mktemp("compressed")
    every: list[dict[str, Any]] = [
        {"chunks": (CHUNK, *SHAPE), "compression": "gzip", "shuffle": True},
        {},
        {"chunks": (CHUNK, 12, 5, 3), "compression": "gzip"},
    ]
    for n, (start, count, options) in enumerate(zip(STARTS, COUNTS, every, strict=True)):
        with h5py.File(root / f"s-{n}.h5", "w") as file:
            file.create_dataset("images", data=IMAGES[start : start + count], **options)
            file["labels"] = np.arange(start, start + count)
    return root


def read_table(make: Any, store: Path) -> tuple[Any, SampleTable, StoredChunkColumn]:
    made = make({"url": f"file://{store}", "shards": "*.h5"} | DATA, workers=0)
    made.fill()
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"], 10_000_000)
    table.load(map(name_of, range(3)), ())
    column = table.snapshot.index.columns["image"]
    assert isinstance(column, StoredChunkColumn)
    return made, table, column


@pytest.mark.parametrize(
    ("engine", "order"),
    [("cpu", "chunks"), ("dali", "chunks"), ("dataloader", "rows")][: None if IS_FULL else 1],
)
def test_epochs_have_what_the_store_has(
    store: Path, config: Config, engine: str, order: str
) -> None:
    settings = config(url=f"file://{store}", shards="*.h5", epoch="full")
    settings["data"] |= DATA | {"options": {"order": order, "layout": "HWC"}}
    settings["pipeline"] = []
    with load(settings, engine=engine) as loader:
        first = loader.state_dict()
        seen: list[list[int]] = [[], []]
        for epoch in range(2):
            for batch in loader:
                labels = batch["label"].tolist()
                assert np.array_equal(batch["image"].numpy(), IMAGES[labels])
                seen[epoch] += labels
    assert [sorted(labels) for labels in seen] == [list(range(len(IMAGES)))] * 2
    assert seen[0] != seen[1]
    if order == "chunks":
        settings["data"]["options"] |= {"buffer": 1, "chunk_cache": "2MB"}
        with load(settings, engine=engine) as loader:  # the cache stays the same
            assert loader.index.columns["image"].array is not None
            with pytest.raises(gpupipe.StateError, match=r"data\.buffer"):
                loader.load_state_dict(first)


def test_the_buffer_does_not_depend_on_the_shard_that_came_first(
    tmp_path: Path, config: Config, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Samples of the first one share no chunks, and the chunks of the other are too large."""
    (tmp_path / "large").mkdir()
    images = np.zeros((8, 70, 70, 3), np.uint8)
    for n, options in enumerate([{}, {"chunks": (4, 70, 70, 3), "compression": "gzip"}]):
        with h5py.File(tmp_path / f"large/s-{n}.h5", "w") as file:
            file.create_dataset("images", data=images, **options)
            file["labels"] = np.arange(8 * n, 8 * n + 8)
    settings = config(url=f"file://{tmp_path}/large", shards="*.h5", workers=0)
    settings["data"] |= DATA | {"options": {"order": "chunks", "chunk_cache": "1MB"}, "seed": SEED}
    settings["pipeline"] = []
    filler = make({"url": f"file://{tmp_path}/large", "shards": "*.h5", "seed": SEED} | DATA).filler
    assert filler.publish_shard() == "published"

    def train(loader: gpupipe.Loader) -> list[int]:
        return sorted(label for batch in loader for label in batch["label"].tolist())

    with load(settings, engine="cpu") as loader:
        assert train(loader) == [*range(8)]
        assert "their samples share no chunks" in caplog.text
        assert filler.publish_shard() == "published"
        train(loader)  # may have begun before
        for _ in range(2):
            assert train(loader) == [*range(16)]
    said = r"s-1\.h5:images row 0: 64 chunks of 58,800 bytes .*data\.options\.buffer to at most 9"
    assert len(re.findall(said, caplog.text)) == 1
    with pytest.raises(gpupipe.DataError, match=said):
        load(settings, engine="cpu")
    settings["data"]["options"]["buffer"] = 9
    with load(settings, engine="cpu") as loader:
        assert train(loader) == [*range(16)]


def test_a_damaged_chunk_is_not_decoded(make: Any, store: Path) -> None:
    made, _, column = read_table(make, store)
    rows = np.arange(len(column))
    contents = column.read(rows)
    assert np.array_equal(np.stack(contents).reshape(IMAGES.shape), IMAGES)
    assert not contents[0].flags.writeable, "samples share the chunk"
    path = made.folder.shard_path(name_of(0))
    data = bytearray(path.read_bytes())
    data[int(column.table.places.offset[1]) + 5] ^= 1  # the second chunk of the first file
    path.write_bytes(data)
    assert len(column.read(rows[:CHUNK])) == CHUNK
    with pytest.raises(OSError, match="no download worker is running that could fetch it again"):
        column.read(rows[CHUNK : CHUNK + 1])
    assert column.location(CHUNK, "images row 4") == f"file://{store}/s-0.h5:images row 4"


def test_a_part_for_a_worker_has_the_table_of_its_chunks_alone(make: Any, store: Path) -> None:
    _, _, column = read_table(make, store)
    rows = np.array([21, 2, 10, 3, 2])
    part = pickle.loads(pickle.dumps(column.take(rows)))
    contents = np.stack(part.read(np.arange(5)))
    assert np.array_equal(contents.reshape(5, *SHAPE), IMAGES[rows])
    assert len(part.table.places) == len(part.checksum) == 1 + 1 + 2


def test_a_broken_shard_is_one_sample_that_says_why(make: Any, store: Path) -> None:
    made, table, _ = read_table(make, store)
    table.load([name_of(0), name_of(2)], [1])
    column = table.snapshot.index.columns["image"]
    with pytest.raises(OSError, match="changed since it was listed"):
        column.read(np.array([0, COUNTS[0]]))
    assert column.location(COUNTS[0], "x") == f"file://{store}/s-1.h5"
    (content,) = column.take(np.array([COUNTS[0] + 1])).read(np.array([0]))
    assert np.array_equal(content.reshape(SHAPE), IMAGES[STARTS[2]])
    assert made.folder.list_present_shards() == set(map(name_of, range(3)))


def test_zarr_stores_in_zip_files_are_shards(make: Any, tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    for n, (start, count) in enumerate(zip(STARTS, COUNTS, strict=True)):
        store = zarr.storage.ZipStore(tmp_path / f"stores/s-{n}.zarr.zip", mode="w")
        group = zarr.open_group(store, mode="w", zarr_format=3)
        images = IMAGES[start : start + count]
        group.create_array("images", data=images, chunks=(2, *SHAPE), shards=(8, *SHAPE))
        group.create_array("labels", data=np.arange(start, start + count))
        store.close()
    made = make({"url": f"file://{tmp_path}/stores", "shards": "*.zarr.zip"} | DATA, workers=0)
    assert made.fill() == "complete"
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"], 10_000_000)
    table.load(map(name_of, range(3)), ())
    index = table.snapshot.index
    assert index.labels.tolist() == list(range(len(IMAGES)))
    contents = np.stack(index.columns["image"].read(np.arange(len(index))))
    assert np.array_equal(contents.reshape(IMAGES.shape), IMAGES)
    original = (tmp_path / "stores/s-1.zarr.zip").read_bytes()
    assert made.folder.shard_path(name_of(1)).read_bytes() == original
