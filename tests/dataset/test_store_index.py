from pathlib import Path

import h5py
import numpy as np
import pytest

from gpupipe.errors import DataError
from helpers.array_stores import IMAGES, index_stores, make_jpegs, read_all, write_hdf5


def test_images_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    jpegs = make_jpegs(2)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for n, jpeg in enumerate(jpegs):
            file[f"{n}/photo"] = jpeg
            file.create_dataset(f"{n}/coded", data=jpeg, chunks=(100,), compression="gzip")
            file[f"{n}/series"] = np.arange(n + 3, dtype=np.uint8)
    fields = {"photo": "photo", "coded": "coded", "series": "series"}
    index = index_stores([tmp_path / "a.h5"], fields, groups="/")
    assert [index.columns[name].array is None for name in fields] == [True, True, False]
    for n, jpeg in enumerate(jpegs):
        assert np.array_equal(index.read(n, "photo"), jpeg)
        assert np.array_equal(index.read(n, "coded"), jpeg)
    assert index.read(1, "series").tolist() == [0, 1, 2, 3]


def test_a_store_without_samples(tmp_path: Path) -> None:
    full = write_hdf5(tmp_path / "a.h5")
    empty = write_hdf5(tmp_path / "b.h5", IMAGES[:0])
    assert np.array_equal(read_all(index_stores([empty, full], {"x": "images"})), IMAGES)
    with pytest.raises(DataError, match=r"b\.h5: no sample in 1 file: see data\.fields"):
        index_stores([empty], {"x": "images"})


def test_stores_that_do_not_fit_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.h5", "b.h5", "c.h5")]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            if number == 2:
                file["x"] = IMAGES[:2]
            else:
                ragged = file.create_dataset("x", (2,), h5py.vlen_dtype(["u1", "f4"][number]))
                ragged[0] = ragged[1] = [1, 2]
            file["v"] = np.zeros((2, number + 1))
    with pytest.raises(DataError, match=r"b\.h5: 'x' has ragged rows of float32, but of uint8 in"):
        index_stores(paths[:2], {"x": "x"})
    with pytest.raises(DataError, match=r"c\.h5: 'x' has no ragged rows, and other files have"):
        index_stores([paths[0], paths[2]], {"x": "x"})
    with pytest.raises(DataError, match=r"c\.h5: the value 'v' has the shape \[3\], but \[1\] in"):
        index_stores([paths[0], paths[2]], {"x": "v"}, values={"v": "v"})
