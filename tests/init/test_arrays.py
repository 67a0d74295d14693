"""gpupipe init on .npy and .npz files: parts, labels and layouts."""

from pathlib import Path

import numpy as np
import pytest

from gpupipe.init.arrays import infer_layout
from helpers.init_runs import data_of, init_and_run, refused

LABELS = np.arange(6) % 2


def test_channels_last_are_told_from_channels_first(data: Path) -> None:
    np.save(data / "x_train.npy", np.zeros((6, 32, 30, 3), np.uint8))
    np.save(data / "y_train.npy", LABELS[:, None])
    np.save(data / "x_test.npy", np.zeros((6, 3, 32, 30), np.uint8))
    np.save(data / "y_test.npy", LABELS)
    said = init_and_run("set")
    assert "train.yaml: source numpy, 6 samples in 2 classes: 0, 1" in said
    for part, file, layout in (("train", "train", "HWC"), ("val", "test", "CHW")):
        assert data_of(f"{part}.yaml") == (
            f"source: numpy files: set/x_{file}.npy labels: set/y_{file}.npy rows: true "
            f"layout: {layout}"
        )
    assert "layout" not in said


@pytest.mark.parametrize(
    ("shape", "layout", "is_sure"),
    [
        ((8,), "L", True),
        ((28, 28), "HW", True),
        ((1, 28, 28), "CHW", True),
        ((28, 28, 4), "HWC", True),
        ((3, None, None), "CHW", True),
        ((None, None, 3), "HWC", True),
        ((13, 64, 64), "CHW", False),
        ((64, 64, 13), "HWC", False),
        ((20, 20, 20), "CHW", False),
        ((3, 8, 3), "CHW", False),
        ((16, 64, 64, 3), "DHWC", False),
        ((1, 16, 64, 64), "CDHW", False),
        ((16, 3, 64, 64), "TCHW", False),
    ],
)
def test_layouts(shape: tuple[int | None, ...], layout: str, is_sure: bool) -> None:
    inferred, doubt = infer_layout(shape)
    assert (inferred, not doubt) == (layout, is_sure)
    assert is_sure or ("set data.layout to" in doubt and layout in doubt)


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_an_ambiguous_shape_is_doubted(data: Path, save: object) -> None:
    (np.save if save is np.save else np.savez)(
        data / ("x.npy" if save is np.save else "x.npz"), np.zeros((6, 20, 20, 20), np.float32)
    )
    assert "arrays of (20, 20, 20) are taken for CHW" in init_and_run("set")
    assert "layout: CHW" in data_of()


def test_arrays_in_class_folders(data: Path) -> None:
    for n in range(4):
        (data / "ab"[n % 2]).mkdir(exist_ok=True)
        np.save(data / "ab"[n % 2] / f"{n}.npy", np.zeros((8 + n, 9, 3), np.uint8))
    init_and_run("set")
    assert data_of() == "source: numpy root: set layout: HWC"


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "val_images", "val_labels"),
        ("xtrain", "ytrain", "xval", "yval"),
    ],
)
def test_a_npz_file_of_two_parts(data: Path, names: tuple[str, ...]) -> None:
    images, labels = np.zeros((6, 28, 28), np.uint8), LABELS
    np.savez(data / "mnist.npz", **dict(zip(names, (images, labels) * 2, strict=True)))
    said = init_and_run("set/mnist.npz")
    assert "val.yaml: source numpy, 6 samples in 2 classes: 0, 1" in said
    for part, pair in (("train", names[:2]), ("val", names[2:])):
        assert f"arrays: {{array: {pair[0]}, labels: {pair[1]}}}" in data_of(f"{part}.yaml")


def test_arrays_that_are_not_read_are_named(data: Path) -> None:
    np.savez(data / "a.npz", images=np.zeros((6, 8)), labels=LABELS, weights=np.zeros(6))
    assert "the samples are the array 'images'; weights are not read" in init_and_run("set")


@pytest.mark.parametrize("others", [{}, {"labels": LABELS}], ids=["alone", "with labels"])
def test_the_first_array_that_is_no_labels_holds_the_samples(
    data: Path, others: dict[str, np.ndarray]
) -> None:
    np.savez(data / "a.npz", **others, signal=np.zeros((6, 8)), weights=np.zeros(6))
    assert "the samples are the array 'signal'; weights are not read" in init_and_run("set")
    arrays = "{array: signal, labels: labels}" if others else "{array: signal}"
    assert f"arrays: {arrays}" in data_of()


def test_targets_that_are_no_classes_become_values(data: Path) -> None:
    np.save(data / "x.npy", np.zeros((6, 8), np.float32))
    np.save(data / "y.npy", np.zeros((6, 10), np.float32))
    assert "'y.npy' holds float32 (6, 10), no class numbers" in init_and_run("set")
    assert "values: {target: set/y.npy}" in data_of()


def test_a_compressed_npz_file_is_refused(data: Path) -> None:
    np.savez_compressed(data / "mnist.npz", x_train=np.zeros((6, 28, 28)), y_train=LABELS)
    assert "write it with numpy.savez, as in numpy.savez(NEW, **numpy.load(OLD))" in refused("set")
