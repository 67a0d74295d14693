"""Parts of the rows of Zarr stores: which chunks and files each has, and what zarr reads of it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from gpupipe.formats import DamagedError
from gpupipe.formats.stored_arrays import StoreRequest
from gpupipe.formats.zarr_rows import METADATA, ZarrRows
from helpers.array_stores import COUNT, IMAGES, SHAPE

NAMES = np.array([f"é{n % 3}" for n in range(COUNT)], np.dtypes.StringDType())
REQUEST = StoreRequest(
    {"image": "/a/images", "mask": "masks"}, "labels", {"v": "v", "n": "names"}, None
)


def write(path: Path, version: int) -> Path:
    """Write a store with arrays of several chunks, dtypes and codecs, and with consolidated
    metadata.
    """
    group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
    shards: dict[str, Any] = {"shards": (6, 12, 10, 3)} if version == 3 else {}
    chunks = (3 if version == 3 else 6, 12, 5, 3)
    images = group.create_array("a/images", data=IMAGES, chunks=chunks, **shards)
    images.attrs["unit"] = "lux"
    group.create_array("masks", data=IMAGES[..., 0] > 30, chunks=(2, 12, 10))
    group.create_array("labels", data=np.arange(COUNT), chunks=(5,))
    group.create_array("v", data=np.arange(COUNT) / np.float32(2), chunks=(COUNT,))
    group.create_array("names", data=NAMES, chunks=(7,))
    if version == 3:
        zarr.consolidate_metadata(path)
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore:.*(Consolidated metadata|data type)")
def test_each_part_is_a_store_of_its_rows(tmp_path: Path, version: int) -> None:
    store, copy = write(tmp_path / "x.zarr", version), tmp_path / "copy"

    def copy_files(wanted: Any) -> None:
        for file in filter(wanted, sorted(store.rglob("*"))):
            target = copy / file.relative_to(store)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)

    copy_files(lambda file: file.name in METADATA)
    rows = ZarrRows(copy, REQUEST, 6 * (IMAGES[0].nbytes + IMAGES[0, ..., 0].nbytes))
    assert (rows.rows, rows.count) == (6, COUNT)
    assert rows.arrays_to_read == ["labels", "v", "names"], "the masks' chunks fit the images'"
    whole = ("labels", "v", "names")
    copy_files(lambda file: file.is_file() and file.relative_to(store).parts[0] in whole)
    rows.read_arrays()
    for begin in range(0, COUNT, rows.rows):
        end, part = min(begin + rows.rows, COUNT), tmp_path / f"{begin}.zarr"
        members = dict(rows.iter_members(begin, end))
        for chunk in rows.iter_chunks(begin, end):
            members[chunk.name] = (store / chunk.key).read_bytes()
        for name, content in members.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            (part / name).write_bytes(content)
        group = zarr.open_group(part, mode="r")
        assert np.array_equal(group["a/images"][:], IMAGES[begin:end])
        assert np.array_equal(group["masks"][:], IMAGES[begin:end, ..., 0] > 30)
        assert np.array_equal(group["labels"][:], np.arange(begin, end))
        assert np.array_equal(group["v"][:], np.arange(begin, end) / 2)
        assert np.array_equal(group["names"][:], NAMES[begin:end])
        assert group["a/images"].attrs["unit"] == "lux"
        objects = [name for name in members if name.rpartition("/")[2] not in METADATA]
        of_images = 1 if version == 3 else 2  # a shard of chunks, or two chunks
        assert len(objects) == of_images + (end - begin) // 2 + len(whole)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (StoreRequest({"x": "image"}, None, {}, None), "no array 'image' in it.*'/images'"),
        (StoreRequest({"x": "images"}, "few", {}, None), "3 rows in '/few', but 22 in '/images'"),
        (StoreRequest({"x": "one"}, None, {}, None), "'/one' is a single number"),
    ],
)
def test_what_cannot_be_cut_is_named(tmp_path: Path, request_: StoreRequest, said: str) -> None:
    group = zarr.open_group(tmp_path / "x", mode="w")
    group.create_array("images", data=IMAGES)
    group.create_array("few", data=np.arange(3))
    group.create_array("one", data=np.array(3))
    with pytest.raises(ValueError, match=said):
        ZarrRows(tmp_path / "x", request_, 1000)


def test_damaged_metadata_are_named(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text("{")
    with pytest.raises(DamagedError, match="zarr cannot open it"):
        ZarrRows(tmp_path, REQUEST, 1000)
    assert IMAGES.shape[1:] == SHAPE
