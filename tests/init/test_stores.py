"""gpupipe init on HDF5 files and Zarr stores: rows, groups, labels and layouts."""

from pathlib import Path

import h5py
import numpy as np
import zarr

from helpers.array_stores import COUNT, IMAGES, LABELS, make_jpegs
from helpers.init_runs import data_of, init_and_run, refused


def test_rows_of_two_parts_with_labels(data: Path) -> None:
    for part in ("train", "test"):
        with h5py.File(data / f"{part}.h5", "w") as file:
            file.create_dataset("set_x", data=IMAGES, chunks=(5, 12, 10, 3), compression="gzip")
            file["set_y"] = LABELS
            file["weight"] = np.ones(COUNT)
    said = init_and_run("set")
    assert "train.yaml: source hdf5, 22 samples in 4 classes: 0, 1, 2, 3" in said
    assert "/weight are not read" in said
    for part, file in (("train", "train"), ("val", "test")):
        assert data_of(f"{part}.yaml") == (
            f"source: hdf5 files: set/{file}.h5 fields: {{image: /set_x}} label: /set_y layout: HWC"
        )


def test_groups_of_image_files(data: Path) -> None:
    with h5py.File(data / "scans.hdf5", "w") as file:
        for n, jpeg in enumerate(make_jpegs(4)):
            file[f"all/{n}/photo"] = np.concatenate([jpeg, jpeg[:n]])
            file[f"all/{n}/label"] = n % 2
    said = init_and_run("set")
    assert "each group in /all is taken for a sample" in said
    assert data_of("train.yaml") == (
        "source: hdf5 files: set/scans.hdf5 groups: /all fields: {image: photo} label: label"
    )


def test_a_zarr_store(data: Path) -> None:
    group = zarr.open_group(data / "a.zarr", mode="w", zarr_format=3)
    group.create_array("images", data=IMAGES)
    said = init_and_run("set")
    assert "no array looks like labels" in said
    assert data_of("train.yaml") == (
        "source: zarr stores: set/a.zarr fields: {image: /images} layout: HWC"
    )


def test_nothing_to_train_on(data: Path) -> None:
    with h5py.File(data / "a.h5", "w") as file:
        file["x"] = np.arange(3)
    assert "a.h5: no array of samples in it; there are /x" in refused("set")
