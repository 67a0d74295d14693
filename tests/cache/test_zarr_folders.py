"""Zarr stores in folders of many objects as shards: which objects, what is refused, and epochs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpupipe
from gpupipe.cache import shard_members
from gpupipe.cache.cache_folder import prepare_folder
from gpupipe.cache.maintenance import fetch_missing_shards, remove_damaged_shards
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.stored_fill import name_of, row_of
from gpupipe.cache.stored_samples import SampleTable
from helpers.array_stores import COUNT, IMAGES, SHAPE, make_jpegs
from helpers.cached_loading import Config, load
from helpers.faulty_store import serve
from helpers.stored_shards import cached

DATA: dict[str, Any] = {"fields": {"image": "images"}, "label": "labels"}
FILLED = slice(8, 12)
"""The rows of the second store that have no chunk."""
PIXELS = IMAGES.copy()
PIXELS[FILLED] = 9
ROWS = 8 * IMAGES[0].nbytes
"""The size of shards of 8 rows."""


def write_store(path: Path, version: int, first: int) -> None:
    """Write PIXELS in objects of 4 rows, in two objects each, and labels from `first` on."""
    group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
    shards: dict[str, Any] = {"shards": (4, 12, 6, 3)} if version == 3 else {}
    images = group.create_array(
        "images",
        shape=PIXELS.shape,
        dtype="u1",
        chunks=(2 if shards else 4, 12, 6, 3),
        fill_value=9,
        **shards,
    )
    images[:] = PIXELS
    group.create_array("labels", data=np.arange(first, first + COUNT), chunks=(10,))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of version 2 and one of version 3, in two folders, and what is no store."""
    root = tmp_path_factory.mktemp("folders")
    write_store(root / "b/one.zarr", 2, 0)
    write_store(root / "a/two.zarr", 3, COUNT)
    (root / "a/readme.txt").write_text("no store")
    return root


def test_each_shard_is_a_store_of_its_rows(make: Any, store: Path) -> None:
    data = {"url": f"file://{store}", "shards": "**/*.zarr"} | DATA
    made = make(data, shard_size=ROWS)
    names = [made.listing.names[n] for n in range(len(made.listing))]
    expected = [f"{name}.zarr[{b}:{e}]" for name in ("a/two", "b/one") for b, e in PARTS]
    assert names == expected
    members = shard_members.load(made.folder)
    assert members is not None
    objects = [m.file.name for m in members.iter_members(1) if m.file]
    assert objects == [f"a/two.zarr/images/c/3/0/{n}/0" for n in (0, 1)], "rows 8 to 12 have none"
    assert made.fill() == "complete"
    assert made.another().publish_shard() == "complete"
    files = cached(made.folder)
    for name, file in files.items():
        first, last = PARTS[row_of(name) % len(PARTS)]
        labels = np.arange(first, last) + (0 if row_of(name) >= len(PARTS) else COUNT)
        with zarr.storage.ZipStore(file, mode="r") as archive:
            group: Any = zarr.open_group(archive, mode="r")
            assert np.array_equal(group["images"][:], PIXELS[first:last])
            assert np.array_equal(group["labels"][:], labels)
        assert file.stat().st_size == made.listing.sizes[row_of(name)]
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"], 10_000_000)
    table.load(files, ())
    index = table.snapshot.index
    contents = np.stack(index.columns["image"].read(np.arange(len(index))))
    assert np.array_equal(contents.reshape(-1, *SHAPE), np.concatenate([PIXELS, PIXELS]))
    assert index.labels.tolist() == [*range(COUNT, 2 * COUNT), *range(COUNT)]
    assert table.snapshot.ids.tolist() == [
        (n << 32) + row for n, (b, e) in enumerate(PARTS * 2) for row in range(e - b)
    ]
    assert index.location(9) == f"file://{store}/a/two.zarr[8:16]:images row 1"


PARTS = [(0, 8), (8, 16), (16, COUNT)]


def test_a_damaged_shard_is_fetched_again_to_the_same_bytes(make: Any, store: Path) -> None:
    made = make({"url": f"file://{store}", "shards": "b/one.zarr"} | DATA, shard_size=ROWS)
    assert [made.listing.names[n] for n in range(3)] == [f"b/one.zarr[{b}:{e}]" for b, e in PARTS]
    made.fill()
    path = made.folder.shard_path(name_of(2))
    before = path.read_bytes()
    path.write_bytes(before[:-100] + bytes(100))
    problems = remove_damaged_shards(made.folder, len(made.listing), lambda n, of: None)
    assert list(problems) == [name_of(2)]
    assert fetch_missing_shards(made.folder, made.another()) == {}
    assert path.read_bytes() == before


def test_what_a_lister_left_that_was_killed_is_removed(
    make: Any, store: Path, tmp_path: Path
) -> None:
    data = {"url": f"file://{store}", "shards": "b/one.zarr"} | DATA
    cache = CacheOptions(dir=tmp_path / "cache", max_bytes="4MB", shard_size=ROWS)
    left = prepare_folder(cache, DataSet(**data)).dir / "tmp/zarr/images"
    left.mkdir(parents=True)
    (left / ".zarray").write_text("damage")
    assert make(data, shard_size=ROWS).fill() == "complete"
    assert not list((tmp_path / "cache/tmp").iterdir())


def test_another_shard_size_is_one_of_another_cache(make: Any, store: Path) -> None:
    data = {"url": f"file://{store}", "shards": "b/one.zarr"} | DATA
    make(data, shard_size=ROWS)
    said = f"data.cache.shard_size {ROWS} there, {2 * ROWS} here: set data.cache.dir"
    with pytest.raises(gpupipe.DataError, match=said):
        make(data, shard_size=2 * ROWS)


def test_groups_are_samples(make: Any, tmp_path: Path) -> None:
    files = make_jpegs(7)
    for version in (2, 3):
        path = tmp_path / f"s/{version}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
        for n, content in enumerate(files):
            scan = group.create_group(f"in/scans/{n}")
            scan.create_array("image", data=content)
            scan.create_array("unused", data=content)
            scan.attrs["class"] = n
    data = {"url": f"file://{tmp_path}/s", "shards": "{2..3}.zarr", "fields": {"image": "image"}}
    options = {"groups": "/in/scans"}
    made = make(data | {"label": "@class", "options": options}, shard_size=1500)
    assert made.fill() == "complete"
    count = len(made.listing)
    assert count > 4
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"], 10_000_000)
    table.load(map(name_of, range(count)), ())
    index = table.snapshot.index
    assert index.labels.tolist() == [*range(7)] * 2
    for n, content in enumerate(index.columns["image"].read(np.arange(14))):
        assert np.array_equal(content, files[n % 7])
    with zarr.storage.ZipStore(made.folder.shard_path(name_of(0)), mode="r") as archive:
        first: Any = zarr.open_group(archive, mode="r")["in/scans/0"]
        assert list(first.array_keys()) == ["image"]


def test_epochs_over_a_store_that_fails(store: Path, config: Config) -> None:
    with serve(store) as (url, faults):
        faults.errors["/images/c/1/0/0/0"] = 1
        faults.errors["/images/c/1/0/1/0"] = 1
        settings = config(url=url, shards="a/two.zarr", epoch="full", shard_size=ROWS)
        settings["data"] |= DATA | {"options": {"layout": "HWC"}}
        settings["pipeline"] = []

        def train(loader: gpupipe.Loader) -> None:
            seen = list[int]()
            for batch in loader:
                rows = [label - COUNT for label in batch["label"].tolist()]
                assert np.array_equal(batch["image"].numpy(), PIXELS[rows])
                seen += rows
            assert sorted(seen) == list(range(COUNT))

        with load(settings, engine="cpu") as loader:
            assert len(loader) == -(-COUNT // 4)
            train(loader)
            asked = len(faults.asked)
            train(loader)
        assert len(faults.asked) == asked
        assert not any(faults.errors.values())
        # The metadata of the shard that says which shape samples have are damaged on the disk.
        path = Path(settings["data"]["cache"]["dir"]) / "shards/00000001.zip"
        path.write_bytes(bytes(300) + path.read_bytes()[300:])
        with load(settings, engine="cpu") as loader:
            train(loader)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"shards": "c/*.zarr"}, "no samples in folders that match c/.*zarr"),
        ({"shards": "c/x.zarr"}, "c/x.zarr: no such folder: set data.shards"),
        ({"fields": {"image": "image"}}, "a/two.zarr: no array 'image' in it.*'/images'"),
        ({"options": {"groups": "scans"}}, "no samples in folders that match"),
    ],
)
def test_what_is_no_store_is_named(make: Any, store: Path, data: dict[str, Any], said: str) -> None:
    with pytest.raises(gpupipe.DataError, match=said):
        make({"url": f"file://{store}", "shards": "**/*.zarr"} | DATA | data)
