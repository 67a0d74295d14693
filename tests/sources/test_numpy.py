from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from gpupipe.dataset import array_index
from gpupipe.errors import DataError
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
    assert (index.classes, index.has_labels) == ([], False)


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
