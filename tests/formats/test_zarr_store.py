"""Every way in which Zarr stores numbers: what gpupipe reads is what zarr reads."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec

from gpupipe.dataset.chunk_column import ChunkColumn
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.formats import DamagedError
from gpupipe.formats.stored_arrays import StoreRequest
from helpers.array_stores import IMAGES, SHAPE, index_stores, read_all, read_zarr

ROWS, GRID = (5, *SHAPE), (5, 5, 10, 2)
V2: dict[str, dict[str, Any]] = {
    "plain": {"chunks": ROWS, "compressors": None},
    "default": {"chunks": ROWS},
    "fortran": {"chunks": GRID, "order": "F", "compressors": numcodecs.GZip()},
    "delta": {
        "chunks": GRID,
        "filters": [numcodecs.Delta(dtype="u1")],
        "compressors": numcodecs.LZ4(),
    },
    "lzma": {"chunks": GRID, "compressors": numcodecs.LZMA()},
    "bz2": {"chunks": GRID, "compressors": numcodecs.BZ2()},
    "zlib": {"chunks": GRID, "compressors": numcodecs.Zlib()},
}
V3: dict[str, dict[str, Any]] = {
    "plain": {"chunks": ROWS, "compressors": None},
    "default": {"chunks": ROWS},
    "blosc": {"chunks": GRID, "compressors": [BloscCodec(), Crc32cCodec()]},
    "turned": {"chunks": GRID, "filters": [TransposeCodec(order=(3, 1, 0, 2))]},
    "shards": {"chunks": (2, *SHAPE), "shards": (8, *SHAPE)},
    "plain-shards": {"chunks": (2, *SHAPE), "shards": (8, *SHAPE), "compressors": None},
    "grid-of-shards": {
        "chunks": (2, 6, 10, 3),
        "shards": (8, *SHAPE),
        "compressors": GzipCodec(),
    },
}
SPANS = ("plain", "plain-shards")
REQUEST = StoreRequest({"x": "x"}, None, {}, None)


@pytest.mark.parametrize("version", [2, 3])
def test_each_codec(tmp_path: Path, version: int) -> None:
    path, kinds = tmp_path / "a.zarr", {2: V2, 3: V3}[version]
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, options in kinds.items():
        array = group.create_array(name, shape=IMAGES.shape, dtype="u1", **options)
        array[:] = IMAGES
    index = index_stores([path], {name: f"/{name}" for name in kinds})
    packed = pack(path, tmp_path / "a.zip", "a.zarr/" if version == 2 else "")
    packed_index = index_stores([packed], {name: f"/{name}" for name in kinds})
    for name in kinds:
        assert np.array_equal(read_all(index, name), IMAGES), name
        assert np.array_equal(read_all(packed_index, name), IMAGES), name
        for one in (index, packed_index):
            assert isinstance(one.columns[name], SpanColumn if name in SPANS else ChunkColumn)


def pack(store: Path, path: Path, folder: str) -> Path:
    """Write a store to a ZIP file, in a folder of it."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(store.rglob("*")):
            archive.write(file, folder + str(file.relative_to(store)))
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", [">i2", "<f8", "bool", "<c8"])
def test_dtypes_and_fill_values(tmp_path: Path, version: int, dtype: str) -> None:
    array = (IMAGES.astype(np.int64) * 3 - 40).astype(dtype)
    path = tmp_path / "a.zarr"
    store = zarr.create_array(
        path, shape=array.shape, dtype=dtype, chunks=ROWS, fill_value=1, zarr_format=version
    )
    store[6:17] = array[6:17]
    expected = np.asarray(store[...]).astype(array.dtype.newbyteorder("="))
    if expected.dtype.kind == "c":
        expected = expected.view("f4").reshape(*expected.shape, 2)
    assert np.array_equal(read_all(index_stores([path], {"x": "/"})), expected)


def test_groups_are_samples(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    for n in range(5):
        inner = group.create_group(f"scans/{n}")
        inner.create_array("image", data=IMAGES[n])
        inner.attrs["kind"] = "ab"[n % 2]
    index = index_stores([path], {"image": "image"}, "@kind", groups="scans")
    assert np.array_equal(read_all(index), IMAGES[:5])
    assert (index.classes, index.labels.tolist()) == (["a", "b"], [0, 1, 0, 1, 0])
    assert index.location(3) == f"{path}:scans/3"


def test_a_damaged_shard_index_and_a_cut_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=3)
    group.create_array("x", data=IMAGES, **V3["shards"])
    shard = path / "x/c/1/0/0/0"
    content = bytearray(shard.read_bytes())
    content[-10] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DamagedError, match=r"'x': the index of the shard x/c/1.* is damaged"):
        read_zarr(path, REQUEST)
    shard.write_bytes(content[:30])
    with pytest.raises(DamagedError, match=r"the shard x/c/1/0/0/0 is cut off: 30 bytes"):
        read_zarr(path, REQUEST)
    metadata = json.loads((path / "x/zarr.json").read_text())
    metadata["chunk_grid"]["configuration"]["chunk_shape"][0] = 0
    (path / "x/zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(DamagedError, match=r"'x': shards of \(0, "):
        read_zarr(path, REQUEST)


@pytest.mark.parametrize("version", [2, 3])
def test_labels_may_be_texts(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=version)
    group.create_array("x", data=IMAGES[:3])
    names = group.create_array("names", shape=(3,), dtype=str)
    names[:] = np.array(["b", "a", "b"], dtype=object)
    index = index_stores([path], {"x": "x"}, "names")
    assert (index.classes, index.labels.tolist()) == (["a", "b"], [1, 0, 1])


def test_damaged_metadata_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("x", data=IMAGES, chunks=ROWS)
    file = path / "x/.zarray"
    metadata = json.loads(file.read_text())
    file.write_text(json.dumps(metadata | {"filters": [{"id": "base64"}]}))
    with pytest.raises(ValueError, match="'x': the codec base64, which gpupipe does not use"):
        read_zarr(path, REQUEST)
    file.write_text(json.dumps(metadata | {"compressor": {"id": "pickle"}}))
    with pytest.raises(ValueError, match="'x' cannot be opened by zarr"):
        read_zarr(path, REQUEST)
    file.write_text(json.dumps(metadata | {"shape": [1 << 40, *SHAPE]}))
    with pytest.raises(DamagedError, match="far more than the bytes"):
        read_zarr(path, REQUEST)
    file.write_text("{")
    with pytest.raises(DamagedError, match="'x' cannot be opened by zarr"):
        read_zarr(path, REQUEST)
    (path / ".zgroup").write_text("{")
    with pytest.raises(DamagedError, match="zarr cannot open it"):
        read_zarr(path, REQUEST)
