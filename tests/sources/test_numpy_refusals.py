"""Arrays and options that the source numpy refuses, by the name of the file or of the setting."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.numpy import Numpy


def saved(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


WHOLE = saved(np.zeros((2, 3), np.float32))
REFUSED = {
    "big-endian": (saved(np.zeros(3, ">f4")), r"big-endian numbers \(>f4\): save it as a\.astype"),
    "Fortran order": (
        saved(np.asfortranarray(np.zeros((2, 3)))),
        r"an array in Fortran order: save it as np\.ascontiguousarray\(a\)",
    ),
    "objects": (
        saved(np.array([{}], object)),
        r"an array of object: save it as numbers, .*\(objects are never unpickled\)",
    ),
    "named fields": (
        saved(np.zeros(2, [("a", "f4")])),
        r"an array of \[\('a', '<f4'\)\]: save it as numbers",
    ),
    "dates": (saved(np.zeros(2, "M8[s]")), "an array of datetime64"),
    "wide floats": (saved(np.zeros(2, np.longdouble)), "an array of float128"),
    "cut off": (
        WHOLE[:-5],
        r"cut off: 5 of the 24 bytes are missing that an array of float32 \(2, 3\) has; "
        r"write the file again, or leave it out",
    ),
    "cut off in the header": (WHOLE[:40], "a header that is cut off"),
    "something behind": (
        WHOLE + b"xy",
        r"2 bytes past its array of float32 \(2, 3\); write the file again",
    ),
    "another format": (b"P6 2 2 255 ...........", r"no \.npy file"),
    "nothing": (b"", r"no \.npy file"),
    "no numbers": (
        saved(np.zeros((0, 3))),
        r"no numbers in it \(shape \[0, 3\]\): leave the file out",
    ),
    "many axes": (saved(np.zeros((1,) * 9)), r"an array of 9 axes, more than gpupipe takes \(8\)"),
    "a pickle": (pickle.dumps(np.zeros(3)), r"no \.npy file"),
    "code in the header": (WHOLE.replace(b"(2, 3)", b"exit()"), "a header that cannot be read"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_named_with_its_file(tmp_path: Path, what: str) -> None:
    content, message = REFUSED[what]
    (tmp_path / "0.npy").write_bytes(WHOLE)
    (tmp_path / "1.npy").write_bytes(content)
    with pytest.raises(
        DataError, match=rf"^{tmp_path}/1\.npy: {message}" if what != "many axes" else message
    ):
        Numpy(files=str(tmp_path / "?.npy")).index()


def test_files_that_do_not_fit_each_other(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((2, 3), np.float32))
    for other, message in (
        (
            np.zeros((2, 3)),
            r"1\.npy: float64, but float32 in .*0\.npy: arrays of one field are all of one dtype",
        ),
        (np.zeros((2, 3), np.complex64), r"1\.npy: complex64, but float32 in .*0\.npy"),
        (np.zeros((2, 3, 4), np.float32), r"1\.npy: samples of 3 axes, but of 2 axes in .*0\.npy"),
    ):
        np.save(tmp_path / "1.npy", other)
        with pytest.raises(DataError, match=message):
            Numpy(files=str(tmp_path / "?.npy")).index()


def test_labels_may_be_a_column(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "y.npy", np.array([[2], [0], [1]]))
    source = Numpy(files=str(tmp_path / "x.npy"), rows=True, labels=str(tmp_path / "y.npy"))
    assert source.index().labels.tolist() == [2, 0, 1]


def test_labels_that_cannot_be(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    for labels, message in (
        (
            np.zeros(4, int),
            r"data\.labels: 4 rows in its files for 3 samples: there should be one a sample",
        ),
        (
            np.zeros(3),
            r"y\.npy: float64 \(3,\) are no labels: there should be one whole number a sample",
        ),
        (
            np.array([0, -1, 2]),
            r"y\.npy: data\.labels: sample 1 \(row 1\): the label '-1' is negative",
        ),
        (np.array([0, 2**64 - 1, 2], np.uint64), "is too large"),
        (
            np.zeros((3, 2, 2), int),
            r"y\.npy: an array of the shape \(3, 2, 2\), but there should be one number a sample",
        ),
    ):
        np.save(tmp_path / "y.npy", labels)
        with pytest.raises(DataError, match=message):
            Numpy(files=str(tmp_path / "x.npy"), rows=True, labels=str(tmp_path / "y.npy")).index()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "write root"),
        ({"root": "a", "files": "b"}, "write root"),
        ({"root": "a", "labels": "b"}, "labels and values go with files"),
        ({"files": "a", "layout": "WH"}, "the axes of space should be HW, DHW or L"),
        ({"files": "a", "layout": "HCW"}, "next to each other"),
        ({"files": "a", "layout": "CHC"}, "each another"),
        ({"files": "a", "layout": "PC"}, "should be its last axis"),
        ({"files": "a", "field": "label"}, "'label' cannot be the name"),
        ({"files": "a", "values": {"array": "b"}}, "'array' cannot be the name"),
        ({"manifest": "a.json"}, r"should end in \.txt"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Numpy.model_validate(options)


def test_a_mistake_in_the_yaml_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "data:\n  source: numpy\n  files: x.npy\n  layot: CHW\npipeline: []\n"
    )
    with pytest.raises(
        ConfigError, match=r"c\.yaml:4:3: data\.layot: unknown key; did you mean 'layout'\?"
    ):
        gpupipe.load(tmp_path / "c.yaml")


@pytest.mark.parametrize("source", ["numpy", "raw"])
@pytest.mark.parametrize("limit", ["1000", "null"])
def test_a_limit_for_image_files_is_refused_by_name(
    tmp_path: Path, source: str, limit: str
) -> None:
    own = "" if source == "numpy" else "  dtype: uint8\n  shape: [4]\n"
    (tmp_path / "c.yaml").write_text(
        f"data:\n  source: {source}\n  files: x.npy\n  max_pixels: {limit}\n{own}pipeline: []\n"
    )
    with pytest.raises(
        ConfigError, match=r"c\.yaml:4:\d+: data\.max_pixels.*image file.*arrays: leave it out"
    ):
        gpupipe.load(tmp_path / "c.yaml")


def test_a_manifest_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("path,label\n")
    with pytest.raises(DataError, match=r"m\.csv: no rows: list at least one file, a line each"):
        gpupipe.load(
            {"data": {"source": "numpy", "manifest": str(tmp_path / "m.csv")}, "pipeline": []}
        )


def test_a_label_out_of_range_in_a_npz_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez(path, x=np.zeros((3, 2)), y=np.array([0, 10**8, 1]))
    names = {"array": "x", "labels": "y"}
    source = Numpy(files=str(path), rows=True, labels=str(path), arrays=names)
    with pytest.raises(DataError, match=rf"{path}: data\.labels: sample 1 .* is too large"):
        source.index()
