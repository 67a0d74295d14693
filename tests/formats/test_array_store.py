"""Samples, labels and values in a store, as rows and as groups; what is wrong in a request."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from gpupipe.formats.array_store import describe_arrays
from gpupipe.formats.hdf5_store import Hdf5Store
from gpupipe.formats.stored_arrays import StoreRequest
from helpers.array_stores import COUNT, IMAGES, index_stores, read_all, read_hdf5, write_hdf5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Rows, and groups with the same samples, with labels and values of every kind."""
    path = write_hdf5(tmp_path / "a.h5", chunks=(5, *IMAGES.shape[1:]), compression="gzip")
    with h5py.File(path, "a") as file:
        file["names"] = [f"class {n % 3}" for n in range(COUNT)]
        file["bytes"] = np.array([b"b", b"a"] * (COUNT // 2))
        file["column"] = np.arange(COUNT, dtype=">i2")[:, None] % 2
        file["points"] = np.arange(COUNT * 2, dtype=">f4").reshape(COUNT, 2)
        file["short"] = np.arange(3)
        file["wide"] = np.zeros((COUNT, 5000))
        for n in range(4):
            group = file.create_group(f"scans/{n:02}")
            group["image"] = IMAGES[n]
            group.create_dataset("small", data=IMAGES[n], chunks=(12, 5, 3), compression="lzf")
            group["label"] = n % 2
            group["points"] = np.array([n, n * 2.5])
            group.attrs["kind"] = ["dog", "cat"][n % 2]
    return path


def test_labels_and_values_of_rows(path: Path) -> None:
    index = index_stores([path], {"image": "images"}, "names", {"at": "points"})
    assert (index.classes, index.labels[:4].tolist()) == (
        ["class 0", "class 1", "class 2"],
        [0, 1, 2, 0],
    )
    assert index.values["at"].tolist() == np.arange(COUNT * 2.0).reshape(COUNT, 2).tolist()
    assert index.values["at"].dtype == np.float32
    assert index_stores([path], {"image": "images"}, "bytes").labels[:3].tolist() == [1, 0, 1]
    assert index_stores([path], {"image": "images"}, "column").labels[:3].tolist() == [0, 1, 0]


def test_two_files_are_one_data_set(path: Path) -> None:
    other = write_hdf5(path.with_name("b.h5"), IMAGES[:5, :4])  # smaller images
    index = index_stores([path, other], {"image": "images"}, "labels")
    column = index.columns["image"]
    assert column.array is not None
    assert (column.array.shape, column.array.shape_of(COUNT + 1)) == (None, (4, 10, 3))
    assert np.array_equal(index.read(COUNT + 1).reshape(4, 10, 3), IMAGES[1, :4])
    assert np.array_equal(index.read(7).reshape(12, 10, 3), IMAGES[7])
    assert index.location(COUNT + 1) == f"{other}:images row 1"


@pytest.mark.parametrize("field", ["image", "small"])
def test_groups_are_samples(path: Path, field: str) -> None:
    index = index_stores([path], {"image": field}, "@kind", {"at": "points"}, groups="/scans/")
    assert np.array_equal(read_all(index), IMAGES[:4])
    assert (index.classes, index.labels.tolist()) == (["cat", "dog"], [1, 0, 1, 0])
    assert index.values["at"].tolist() == [[n, n * 2.5] for n in range(4)]
    assert index.names[2] == "/scans/02"
    numbers = index_stores([path], {"image": field}, "label", groups="/scans")
    assert numbers.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("fields", "label", "values", "groups", "message"),
    [
        ({"x": "/imagse"}, None, {}, None, "no array '/imagse' in it; did you mean '/images'?"),
        ({"x": "/images"}, "/lables", {}, None, "no array '/lables'.*mean '/labels'"),
        ({"x": "/images"}, "/short", {}, None, "3 rows in '/short', but 22 in '/images'"),
        ({"x": "/images"}, "/points", {}, None, r"'/points' holds >f4 \(22, 2\), which are no"),
        ({"x": "/images"}, None, {"v": "/wide"}, None, r"'/wide' has the shape \(22, 5000\)"),
        ({"x": "/images"}, None, {"v": "/names"}, None, "'/names' holds object, which are no num"),
        ({"x": "image"}, None, {}, "/scan", "'/scan' is no group: set data.groups"),
        ({"x": "image"}, None, {}, "/images", "'/images' is an array: set data.groups"),
        ({"x": "imag"}, None, {}, "/scans", "no array '/scans/00/imag' in it; did you mean"),
        ({"x": "image"}, "@kinds", {}, "/scans", "'/scans/00' has no attribute 'kinds'; did you"),
        ({"x": "."}, None, {}, "/scans", "no array in '/scans'"),
    ],
)
def test_mistakes_are_named(
    path: Path,
    fields: dict[str, str],
    label: str | None,
    values: dict[str, str],
    groups: str | None,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        read_hdf5(path, StoreRequest(fields, label, values, groups))


def test_arrays_are_listed(path: Path) -> None:
    with Hdf5Store.open(str(path)) as store:
        arrays = {
            array["path"]: (array["shape"], array["dtype"]) for array in describe_arrays(store)
        }
    assert arrays["/images"] == ([22, 12, 10, 3], "uint8")
    assert arrays["/names"] == ([22], "text")
    assert "/scans/03/small" in arrays
