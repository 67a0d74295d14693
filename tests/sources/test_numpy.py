from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import gpupipe
from gpupipe.dataset import array_index
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.numpy import Numpy
from helpers.arrays import read
from helpers.folders import make_files_old


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Two classes with files at several depths, one that is hidden, and one of another kind."""
    for n, name in enumerate(("b/0.npy", "a/deep/1.npy", "a/0.NPY", "b/.hidden.npy", "b/note.txt")):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as f:
            np.save(f, np.full((2, 3), n, np.int16))
    return tmp_path / "data"


def test_a_file_a_sample_in_class_folders(classes: Path) -> None:
    index = Numpy(root=classes).index()
    assert [index.names[i] for i in range(3)] == ["a/0.NPY", "a/deep/1.npy", "b/0.npy"]
    assert (index.classes, index.labels.tolist()) == (["a", "b"], [0, 0, 1])
    assert [read(index, i).tolist() for i in range(3)] == [
        np.full((2, 3), n).tolist() for n in (2, 1, 0)
    ]
    assert index.location(1) == str(classes / "a/deep/1.npy")


def test_rows_of_several_files_are_samples(tmp_path: Path) -> None:
    parts = [
        np.arange(24, dtype=np.float32).reshape(4, 2, 3),
        np.empty((0, 2, 3), np.float32),
        np.full((3, 2, 3), 7, np.float32),
    ]
    for n, part in enumerate(parts):
        np.save(tmp_path / f"x{n}.npy", part)
    np.save(tmp_path / "y0.npy", np.array([3, 1, 0, 2], np.uint8))
    np.save(tmp_path / "y1.npy", np.array([0, 0, 3], np.uint8))
    np.save(tmp_path / "t.npy", np.arange(14.0).reshape(7, 2))
    source = Numpy(
        files=str(tmp_path / "x{0..2}.npy"),
        rows=True,
        labels=(str(tmp_path / "y0.npy"), str(tmp_path / "y1.npy")),
        values={"target": str(tmp_path / "t.npy")},
    )
    index = source.index()
    every = np.concatenate(parts)
    assert all(np.array_equal(read(index, i), every[i]) for i in range(7))
    assert (index.labels.tolist(), index.classes) == ([3, 1, 0, 2, 0, 0, 3], ["0", "1", "2", "3"])
    assert np.array_equal(index.values["target"], np.arange(14.0).reshape(7, 2))
    assert index.location(5) == f"{tmp_path}/x2.npy:row 1"


def test_arrays_of_one_npz_file(tmp_path: Path) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.array([1, 0, 0, 2])
    path = str(tmp_path / "set.npz")
    np.savez(path, x_train=x, y_train=y, t=y * 0.5)
    names = {"array": "x_train", "labels": "y_train"}
    source = Numpy(files=path, rows=True, labels=path, values={"t": path}, arrays=names)
    index = source.index()
    assert all(np.array_equal(read(index, i), x[i]) for i in range(4))
    assert index.labels.tolist() == y.tolist()
    assert index.values["t"].tolist() == [0.5, 0.0, 0.0, 1.0]
    with pytest.raises(DataError, match=r"set\.npz: no array 'array'; known: t, x_train, y_train"):
        Numpy(files=path, rows=True).index()
    with pytest.raises(ValidationError, match="nothing is called 'label'; did you mean 'labels'"):
        Numpy(files=path, arrays={"label": "y_train"})


def test_folders_are_no_classes_without_labels(classes: Path) -> None:
    np.save(classes / "top.npy", np.zeros((2, 3), np.int16))
    index = Numpy(root=classes, label=None).index()
    assert [index.names[i] for i in range(4)] == ["top.npy", "a/0.NPY", "a/deep/1.npy", "b/0.npy"]
    assert (index.classes, index.labels.tolist()) == (["0"], [0, 0, 0, 0])


def test_rows_of_files_in_class_folders(classes: Path) -> None:
    index = Numpy(root=classes, rows=True).index()
    assert index.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert read(index, 5).tolist() == [0, 0, 0]


def test_a_manifest(classes: Path) -> None:
    (classes / "list.csv").write_text("path,label\nb/0.npy,cat\na/0.NPY,ant\n")
    index = Numpy(manifest=classes / "list.csv").index()
    assert (index.labels.tolist(), index.classes) == ([1, 0], ["ant", "cat"])
    assert read(index, 0).tolist() == np.zeros((2, 3)).tolist()
    (classes / "list.csv").write_text("path,label\nb/gone.npy,cat\n")
    with pytest.raises(
        DataError, match=r"b/gone\.npy: no such file: put it there, or leave it out"
    ):
        Numpy(manifest=classes / "list.csv").index()
    (classes / "list.csv").write_text("path,label\n../0.npy,cat\n")
    with pytest.raises(DataError, match=r"list\.csv:2: '\.\./0\.npy' does not lie in"):
        Numpy(manifest=classes / "list.csv").index()
    with pytest.raises(DataError, match=r"none\.csv: no such file: set data\.manifest"):
        Numpy(manifest=classes / "none.csv").index()


@pytest.mark.parametrize(("dtype", "real"), [("complex64", "float32"), ("complex128", "float64")])
def test_complex_numbers_are_pairs(tmp_path: Path, dtype: str, real: str) -> None:
    numbers = (np.arange(12) + 1j * np.arange(12)[::-1]).reshape(2, 2, 3).astype(dtype)
    np.save(tmp_path / "x.npy", numbers)
    source = Numpy(files=str(tmp_path / "x.npy"), rows=True, layout="CL")
    index = source.index()
    assert np.array_equal(read(index, 1)[..., 0] + 1j * read(index, 1)[..., 1], numbers[1])
    spec = source.specs()["array"]
    assert (spec.dtype, spec.layout, spec.shape) == (real, "CLP", (2, 3, 2))
    assert Numpy(files=str(tmp_path / "x.npy"), rows=True, layout="CLP").specs()["array"] == spec


def test_what_the_first_step_gets(tmp_path: Path) -> None:
    for shape, layout in (((2,), "L"), ((2, 3), "HW"), ((4, 2, 3), "CHW"), ((2, 3, 4, 5), "CDHW")):
        np.save(tmp_path / "x.npy", np.zeros(shape, np.uint16))
        spec = Numpy(files=str(tmp_path / "x.npy"), field="scan").specs()["scan"]
        assert (spec.encoded, spec.dtype, spec.layout, spec.shape) == (
            False,
            "uint16",
            layout,
            shape,
        )
    np.save(tmp_path / "x.npy", np.zeros((4, 2, 3), np.uint16))
    np.save(tmp_path / "y.npy", np.zeros((4, 9, 3), np.uint16))
    spec = Numpy(files=str(tmp_path / "?.npy"), layout="LCT").specs()["array"]
    assert (spec.sides, spec.channels, spec.shape, spec.other_sizes) == (
        (4,),
        None,
        (4, None, 3),
        (3,),
    )
    with pytest.raises(
        DataError,
        match=r"data\.layout: layout is 'CHWT', for 4 axes, but the arrays have 3 \(4, \?, 3\), "
        r"as in .*x\.npy",
    ):
        Numpy(files=str(tmp_path / "?.npy"), layout="CHWT").specs()


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
        (np.array([0, -1, 2]), r"data\.labels: sample 1 \(row 1\): the label '-1' is negative"),
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


def test_the_index_is_kept_and_notices_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"{n}.npy" for n in range(3)]
    for n, file in enumerate(files):
        np.save(file, np.full(4, n))
    source = {"files": str(tmp_path / "*.npy")}
    make_files_old(monkeypatch)
    first = Numpy.model_validate(source).index()
    with monkeypatch.context() as patch:
        patch.setattr(array_index, "read_headers", lambda *_: pytest.fail("read again"))
        again = Numpy.model_validate(source).index()
        assert (again.fingerprint, read(again, 2).tolist()) == (first.fingerprint, [2, 2, 2, 2])
    np.save(files[1], np.full(4, 9.5))  # as many bytes as before
    with pytest.raises(DataError, match=r"1\.npy: float64, but int64 in .*0\.npy"):
        Numpy.model_validate(source).index()
    np.save(files[1], np.full(4, 9))
    for change in (lambda: np.save(tmp_path / "3.npy", np.full(4, 3)), files[0].unlink):
        change()
        index = Numpy.model_validate(source).index()
        assert [read(index, i).tolist()[0] for i in range(len(index))] == [
            int(np.load(f)[0]) for f in sorted(tmp_path.glob("*.npy"))
        ]


def test_progress_counts_the_files(classes: Path) -> None:
    said: list[tuple[str, int, int | None]] = []
    Numpy(root=classes).index(lambda *what: said.append(what))
    assert said[-1] == ("reading headers", 3, 3)
