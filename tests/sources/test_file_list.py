"""The file_list source: what each format says, on both engines."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import gpupipe
from gpupipe.sources.file_list import FileList
from helpers.manifests import found, listed, names, save_parquet, written

Rows = list[tuple[str, str]]


def as_text(separator: str) -> Callable[[Path, Rows], Path]:
    return lambda root, rows: written(
        root / "list.txt",
        "# path, label\n\n" + "".join(f"{path}{separator}{label}\n" for path, label in rows),
    )


def as_table(suffix: str, delimiter: str) -> Callable[[Path, Rows], Path]:
    header = f"label{delimiter}more{delimiter}path\n"
    return lambda root, rows: written(
        root / f"list.{suffix}",
        header + "".join(f"{label}{delimiter}x{delimiter}{path}\r\n" for path, label in rows),
    )


def as_parquet(root: Path, rows: Rows) -> Path:
    paths, labels = zip(*rows, strict=True)
    return save_parquet(root / "list.parquet", label=labels, more=[0.5] * len(rows), path=paths)


FORMATS = {
    "spaces": as_text("  "),
    "tab": as_text("\t"),
    "csv": as_table("csv", ","),
    "tsv": as_table("TSV", "\t"),
    "parquet": as_parquet,
}


@pytest.fixture(scope="module")
def rows(faces: Path) -> Rows:
    """Ten faces, not in the order of their names, one of them twice."""
    images = sorted(faces.glob("*/*.jpg"))[::-6]
    return [(str(p.relative_to(faces)), p.parent.name) for p in [*images, images[3]]]


@pytest.mark.parametrize("engine", ["dali", "cpu", "dataloader"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_loads_the_same_in_both_engines(
    tmp_path: Path, faces: Path, rows: Rows, form: str, engine: str
) -> None:
    file = FORMATS[form](tmp_path, rows)
    classes = sorted({name for _, name in rows})
    data = {"source": "file_list", "file": file, "root": faces}
    with gpupipe.load(
        {"data": data, "pipeline": ["decode"]},
        engine=engine,
        workers=0,
        device="cpu",
        ids=True,
        shuffle=False,
        batch_size=4,
    ) as loader:
        batches = list(loader)
        assert [i for b in batches for i in b["id"].tolist()] == list(range(len(rows)))
        assert [loader.index.classes[n] for b in batches for n in b["label"].tolist()] == [
            name for _, name in rows
        ]
        assert loader.index.classes == classes
    images = [image for b in batches for image in b["image"]]
    with gpupipe.load(
        {"data": {"source": "folder", "root": faces}, "pipeline": ["decode"]},
        engine=engine,
        workers=0,
        device="cpu",
        shuffle=False,
    ) as whole:
        everything = {
            whole.index.location(i): image for i, image in enumerate(next(iter(whole))["image"])
        }
    assert all(
        (image == everything[str(faces / path)]).all()
        for image, (path, _) in zip(images, rows, strict=True)
    )


@pytest.mark.parametrize("form", FORMATS)
def test_real_photographs_and_numbers_as_labels(tmp_path: Path, photos: Path, form: str) -> None:
    """ImageNet's lists: the path and the number of the class, of which not all need to occur."""
    images = sorted(photos.glob("*/*.jpg"))[:6]
    file = FORMATS[form](
        tmp_path, [(str(p.relative_to(photos)), f"{9 - n}") for n, p in enumerate(images)]
    )
    steps = ["decode", {"resize": {"size": [32, 32]}}]
    with gpupipe.load(
        {"data": {"source": "file_list", "file": file, "root": photos}, "pipeline": steps},
        device="cpu",
        shuffle=False,
    ) as loader:
        (batch,) = loader
        assert batch["label"].tolist() == [9, 8, 7, 6, 5, 4]
        assert loader.index.classes == [str(n) for n in range(10)]


def test_a_sample_that_is_gone_after_load_is_reported(
    tmp_path: Path, faces: Path, rows: Rows
) -> None:
    file = as_text("\t")(tmp_path, [rows[0], ("none/0.jpg", rows[0][1]), *rows[1:]])
    (tmp_path / "faces").mkdir()
    for folder in faces.iterdir():
        (tmp_path / "faces" / folder.name).symlink_to(folder)
    gone = tmp_path / "faces/none/0.jpg"
    gone.parent.mkdir()
    data = {"source": "file_list", "file": file, "root": tmp_path / "faces"}
    for engine in ("dali", "cpu", "dataloader"):
        gone.touch()
        config = {"data": data, "pipeline": ["decode"]}
        options = {"engine": engine, "workers": 0, "device": "cpu", "shuffle": False}
        with gpupipe.load(config, **options) as loader:
            gone.unlink()
            with pytest.raises(gpupipe.SampleError, match=r"none/0\.jpg: .*no such file"):
                list(loader)


def test_lines_comments_and_blanks(tmp_path: Path) -> None:
    text = "\ufeff# list\n\n  \r\nb.jpg\r\n  a.jpg \n#c.jpg\n./#d.jpg\nb.jpg"
    assert found(listed(tmp_path / "l.txt", text)) == [
        ("b.jpg", ""),
        ("a.jpg", ""),
        ("#d.jpg", ""),
        ("b.jpg", ""),
    ]


def test_spaces_in_a_path_stand_before_a_tab_or_without_labels(tmp_path: Path) -> None:
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg\tbig cat\nc.jpg\tdog v1.5\n")) == [
        ("x y/a b.jpg", "big cat"),
        ("c.jpg", "dog v1.5"),
    ]
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg   cat\n")) == [("x y/a b.jpg", "cat")]
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg\nc d.jpg 3\n", label=None)) == [
        ("x y/a b.jpg", ""),
        ("c d.jpg 3", ""),
    ]


def test_quotes_blank_lines_and_columns_of_a_table(tmp_path: Path) -> None:
    text = '\ufeffname, image\n\n"cat, big","a,b ""c"".jpg"\n dog ,"two\nlines.jpg"\nx, \n'
    assert found(listed(tmp_path / "l.csv", text, path="image", label="name")) == [
        ('a,b "c".jpg', "cat, big"),
        ("two\nlines.jpg", "dog"),
        (" ", "x"),
    ]


def test_names_are_numbered_in_sorted_order_and_numbers_stay(tmp_path: Path) -> None:
    index = listed(tmp_path / "l.txt", "x.jpg dog\ny.jpg Dog\nz.jpg cat\nx.jpg dog\n")
    assert (index.labels.tolist(), index.classes) == ([2, 0, 1, 2], ["Dog", "cat", "dog"])
    index = listed(tmp_path / "l.txt", "x.jpg 3\ny.jpg 01\n")
    assert (index.labels.tolist(), index.classes) == ([3, 1], ["0", "1", "2", "3"])


def test_without_labels_there_are_no_classes(tmp_path: Path) -> None:
    for file, text in (
        ("l.txt", "a.jpg\nb.jpg\n"),
        ("l.csv", "path\na.jpg\nb.jpg\n"),
        ("l.csv", "path,label\na.jpg,\nb.jpg,3\n"),
    ):
        index = listed(tmp_path / file, text, **({"label": None} if "," in text else {}))
        assert (index.classes, index.has_labels, index.labels.dtype) == ([], False, np.int64)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_texts_of_a_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    file = save_parquet(
        tmp_path / "l.parquet",
        path=pa.array(["b.jpg", "é.jpg", "b.jpg"]).cast(kind),
        label=pa.array(["y", "x", "y"]).cast(kind),
    )
    assert found(FileList(file=file).index()) == [("b.jpg", "y"), ("é.jpg", "x"), ("b.jpg", "y")]


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int32())]
)
def test_numbers_of_a_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    labels = (
        pa.array([2, 0]).cast(kind.value_type).dictionary_encode().cast(kind)
        if pa.types.is_dictionary(kind)
        else pa.array([2, 0], kind)
    )
    index = FileList(
        file=save_parquet(tmp_path / "l.parquet", path=["a.jpg", "b.jpg"], label=labels)
    ).index()
    assert (index.labels.tolist(), index.classes) == ([2, 0], ["0", "1", "2"])


def test_one_column_may_be_both(tmp_path: Path) -> None:
    assert found(listed(tmp_path / "l.csv", "path\nb\na\n", label="path")) == [
        ("b", "b"),
        ("a", "a"),
    ]
    assert found(
        FileList(file=save_parquet(tmp_path / "l.parquet", path=["b", "a"]), label="path").index()
    ) == [("b", "b"), ("a", "a")]


ODD_NAMES = [
    b"with space.jpg",
    b"na\xc3\xafve \xe5\x9b\xbe.jpg",
    b"latin1-\xe9\xff.jpg",
    b"back\\slash.jpg",
    b"*.jpg",
    b"%20.jpg",
    b"..dots..jpg",
    b"...",
]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".parquet"])
def test_any_bytes_of_a_name(tmp_path: Path, faces: Path, suffix: str) -> None:
    """A name that is not UTF-8 stays what it is: the files are opened."""
    image = next(faces.glob("*/*.jpg")).read_bytes()
    for name in ODD_NAMES:
        (tmp_path / os.fsdecode(name)).write_bytes(image)
    if suffix == ".parquet":
        file = save_parquet(tmp_path / "l.parquet", path=ODD_NAMES)
    else:
        file = written(
            tmp_path / f"l{suffix}", b"path\n" * (suffix == ".csv") + b"\n".join(ODD_NAMES)
        )
    assert [
        os.fsencode(name) for name in names(FileList(file=file, label=None).index())
    ] == ODD_NAMES
    with gpupipe.load(
        {"data": {"source": "file_list", "file": file, "label": None}, "pipeline": ["decode"]},
        device="cpu",
    ) as loader:
        assert sum(len(b["image"]) for b in loader) == len(ODD_NAMES)


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    file = written(tmp_path / "l.txt", "a.jpg 1\n" * 250_000)
    assert len(FileList(file=file).index(lambda *what: seen.append(what))) == 250_000
    assert seen == [
        ("reading", 100_000, None),
        ("reading", 200_000, None),
        ("reading", 250_000, None),
    ]
