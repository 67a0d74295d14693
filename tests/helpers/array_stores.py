"""HDF5 files and Zarr stores, and the samples that gpupipe finds in them."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gpupipe.dataset.index import Index
from gpupipe.dataset.store_index import Stores, build_index
from gpupipe.formats.array_store import read_contents
from gpupipe.formats.hdf5_store import Hdf5Store
from gpupipe.formats.stored_arrays import StoreContents, StoreRequest
from gpupipe.formats.zarr_store import ZarrStore

COUNT = 22
SHAPE = (12, 10, 3)
IMAGES: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 60, (COUNT, *SHAPE), np.uint8)
LABELS = np.arange(COUNT) % 4


def make_jpegs(count: int) -> list[NDArray[np.uint8]]:
    """Return JPEG files of one level each, 5 times their number, and of different heights."""
    files = []
    for n in range(count):
        content = io.BytesIO()
        Image.fromarray(np.full((20 + n, 30, 3), 5 * n, np.uint8)).save(content, "JPEG")
        files.append(np.frombuffer(content.getvalue(), np.uint8))
    return files


def write_hdf5(path: Path, images: NDArray[Any] = IMAGES, **options: Any) -> Path:
    """Write a file with the datasets /images and /labels. `options` are those of the images."""
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=images, **options)
        file["labels"] = LABELS[: len(images)]
    return path


def read_hdf5(path: Path, request: StoreRequest) -> StoreContents:
    """Return what a file holds, read in this process."""
    with Hdf5Store.open(str(path)) as store:
        return read_contents(store, request)


def read_zarr(path: Path, request: StoreRequest) -> StoreContents:
    """Return what a store holds, read in this process."""
    return read_contents(ZarrStore(str(path)), request)


def index_stores(
    paths: Sequence[Path],
    fields: dict[str, str],
    label: str | None = None,
    values: dict[str, str] | None = None,
    groups: str | None = None,
    max_bytes: int = 10_000_000,
) -> Index:
    """Return the index of stores, which are read in this process."""
    request = StoreRequest(fields, label, values or {}, groups)
    read = {".zarr": read_zarr, ".zip": read_zarr}
    contents = [read.get(path.suffix, read_hdf5)(path, request) for path in paths]
    return build_index(Stores(paths, contents), fields, max_bytes, is_jpeg)


def is_jpeg(data: NDArray[np.uint8]) -> bool:
    """Return whether bytes begin as a JPEG does."""
    return data[:3].tobytes() == b"\xff\xd8\xff"


def read_all(index: Index, field: str | None = None) -> NDArray[Any]:
    """Return the arrays of all rows, read together and in reverse, in the order of the index."""
    column = index.columns[field or index.main]
    assert column.array is not None
    contents = column.read(np.arange(len(index))[::-1])[::-1]
    arrays = [
        content.view(column.array.dtype).reshape(column.array.shape_of(row))
        for row, content in enumerate(contents)
    ]
    return np.stack(arrays)
