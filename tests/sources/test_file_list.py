"""The file_list source: what each format says, what a manifest may not say, and when the index that
was read before may be used.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe import config
from gpupipe.dataset import index_file
from gpupipe.dataset.index import Index
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.file_list import FileList


def written(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def listed(file: Path, content: str | bytes, **options: Any) -> Index:
    return FileList(file=written(file, content), **options).index()


def found(index: Index) -> list[tuple[str, str]]:
    """(path relative to the root, class) of every row."""
    return [
        (index.location(i).removeprefix(f"{index.root}/"), index.classes[label])
        for i, label in enumerate(index.labels)
    ]


def names(index: Index) -> list[str]:
    return [name for name, _ in found(index)]


def refused(file: Path, content: str | bytes, **options: Any) -> str:
    """What the DataError says behind the name of the manifest."""
    with pytest.raises(DataError) as error:
        listed(file, content, **options)
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith(f"{file}:")
    return said.removeprefix(f"{file}:")


def save_parquet(file: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), file)
    return file


# --- all formats, both engines, real images

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


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
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


def test_a_missing_sample_is_reported_when_it_is_loaded(
    tmp_path: Path, faces: Path, rows: Rows
) -> None:
    file = as_text("\t")(tmp_path, [rows[0], ("none/0.jpg", rows[0][1]), *rows[1:]])
    data = {"source": "file_list", "file": file, "root": faces}
    for engine in ("dali", "dataloader"):
        with (
            gpupipe.load(
                {"data": data, "pipeline": ["decode"]},
                engine=engine,
                workers=0,
                device="cpu",
                shuffle=False,
            ) as loader,
            pytest.raises(gpupipe.SampleError, match=r"none/0\.jpg: .*no such file"),
        ):
            list(loader)


# --- what a manifest says


def test_lines_comments_and_blanks(tmp_path: Path) -> None:
    text = "\ufeff# list\n\n  \r\nb.jpg\r\n  a.jpg \n#c.jpg\n./#d.jpg\nb.jpg"
    assert found(listed(tmp_path / "l.txt", text)) == [
        ("b.jpg", "0"),
        ("a.jpg", "0"),
        ("#d.jpg", "0"),
        ("b.jpg", "0"),
    ]


def test_spaces_in_a_path_stand_before_a_tab_or_without_labels(tmp_path: Path) -> None:
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg\tbig cat\nc.jpg\tdog v1.5\n")) == [
        ("x y/a b.jpg", "big cat"),
        ("c.jpg", "dog v1.5"),
    ]
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg   cat\n")) == [("x y/a b.jpg", "cat")]
    assert found(listed(tmp_path / "l.txt", "x y/a b.jpg\nc d.jpg 3\n", label=None)) == [
        ("x y/a b.jpg", "0"),
        ("c d.jpg 3", "0"),
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


def test_without_labels_there_is_one_class(tmp_path: Path) -> None:
    for file, text in (
        ("l.txt", "a.jpg\nb.jpg\n"),
        ("l.csv", "path\na.jpg\nb.jpg\n"),
        ("l.csv", "path,label\na.jpg,\nb.jpg,3\n"),
    ):
        index = listed(tmp_path / file, text, **({"label": None} if "," in text else {}))
        assert (index.classes, index.labels.tolist(), index.labels.dtype) == (
            ["0"],
            [0, 0],
            np.int64,
        )


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
        assert sum(len(b["label"]) for b in loader) == len(ODD_NAMES)


# --- where the files are


def test_the_root_is_the_manifests_folder_or_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    file = written(tmp_path / "lists" / "l.txt", "a.jpg\n")
    assert FileList(file=file).index().location(0) == str(tmp_path / "lists" / "a.jpg")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "lists")
    assert FileList(file=Path("l.txt"), root=Path("~/images")).index().location(0) == str(
        tmp_path / "images" / "a.jpg"
    )
    assert FileList(file=Path("~/lists/l.txt"), root=Path("../images")).index().location(0) == str(
        tmp_path / "images" / "a.jpg"
    )


def test_paths_that_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    inside = [
        "a.jpg",
        "./b.jpg",
        ".//c.jpg",
        "x/../d.jpg",
        "x/./e.jpg",
        "x//f.jpg",
        f"{tmp_path}/real/g.jpg",
        f"{tmp_path}/link/h.jpg",
        f"{tmp_path}/link/x/../i.jpg",
        f"{tmp_path}/link/../real/j.jpg",
        "..k/l..jpg/.m",
    ]
    index = listed(tmp_path / "l.txt", "\n".join(inside), root=tmp_path / "link")
    assert index.root == str(tmp_path / "real")
    assert names(index) == [
        "a.jpg",
        "b.jpg",
        "c.jpg",
        "d.jpg",
        "x/e.jpg",
        "x/f.jpg",
        "g.jpg",
        "h.jpg",
        "i.jpg",
        "j.jpg",
        "..k/l..jpg/.m",
    ]


def test_the_root_may_be_the_whole_machine(tmp_path: Path) -> None:
    assert (
        listed(tmp_path / "l.txt", "/data/a.jpg\nb.jpg\n", root=Path("/")).location(0)
        == "/data/a.jpg"
    )


LEAVING = [
    "../x.jpg",
    "a/../../x.jpg",
    "..",
    ".",
    "/etc/passwd",
    ".//../x",
    "./../x",
    "//etc/passwd",
    "{root}/../x.jpg",
    "{root}x/y.jpg",
    "{root}",
    "a/..",
]


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv"])
@pytest.mark.parametrize("path", LEAVING)
def test_paths_that_leave_the_root_are_refused(tmp_path: Path, path: str, suffix: str) -> None:
    text = f"ok.jpg\n{path.format(root=tmp_path)}\n"
    said = refused(tmp_path / f"l{suffix}", text if suffix == ".txt" else "path\n" + text)
    assert said.startswith(f"{2 if suffix == '.txt' else 3}: '")
    assert (
        f"does not lie in {tmp_path}: move the file there, or set data.root to a folder "
        "that holds all files" in said
    )


def test_paths_of_a_parquet_that_leave_the_root(tmp_path: Path) -> None:
    file = save_parquet(tmp_path / "l.parquet", path=["a.jpg", "../x.jpg"])
    with pytest.raises(DataError, match=rf"^{file}: row 2: '\.\./x\.jpg' does not lie in"):
        FileList(file=file).index()


# --- mistakes


BAD = {
    "nothing": (".txt", "", " no rows: list at least one file, a line each"),
    "comments alone": (".txt", "# a.jpg\n\n", " no rows: list at least one file, a line each"),
    "an empty table": (".csv", "", " no rows: list at least one file, a line each"),
    "a header alone": (".csv", "path,label\n", " no rows: list at least one file, a line each"),
    "no column of paths": (
        ".csv",
        "paths,label\na.jpg,1\n",
        "1: no column 'path'; did you mean 'paths'?; set data.path to the column's name",
    ),
    "no header": (
        ".csv",
        "\na.jpg,1\n",
        "2: no column 'path'; known: 1, a.jpg; set data.path to the column's name (the "
        "columns are named by the header)",
    ),
    "no column of labels": (
        ".tsv",
        "path\tLabels\na.jpg\t1\n",
        "1: no column 'label'; did you mean 'Labels'?; set data.label to the column's name",
    ),
    "another column": (
        ".csv",
        "path,kind\na.jpg,1\n",
        "1: no column 'label'; known: kind, path; set data.label to the column's name "
        "(the columns are named by the header), or data.label=null where "
        "there are no labels",
    ),
    "a column twice": (
        ".csv",
        "path,path,label\na,b,1\n",
        "1: 2 columns are called 'path': rename all but one",
    ),
    "too few": (
        ".csv",
        "path,label\na.jpg,1\n\nb.jpg\n",
        "4: 1 value, but the header names 2 columns: write a value that holds the delimiter "
        "in quotes",
    ),
    "too many": (".csv", "path,label\na,b.jpg,1\n", "2: 3 values, but the header names 2 columns"),
    "a quote that stays open": (
        ".csv",
        'path,label\n"a.jpg,1\nb.jpg,2\n',
        "3: cannot be read as .csv: unexpected end of data",
    ),
    "a huge value": (
        ".csv",
        "path\n" + "a" * 200_000 + "\n",
        "2: cannot be read as .csv: field larger than field limit (131072)",
    ),
    "a long path": (
        ".txt",
        "a.jpg\n" + "a" * 5000 + "\n",
        "2: a path of 5,000 characters, more than a file's can have (4,095)",
    ),
    "an empty path": (".csv", "path,label\n,1\n", "2: the path is empty"),
    "a folder": (".txt", "a/\n", "1: 'a/' is no file's path"),
    "NUL": (
        ".txt",
        "a.jpg\nb\0.jpg\n",
        "2: a NUL byte, which no path holds: save the list as UTF-8",
    ),
    "NUL in a label": (
        ".txt",
        "a.jpg\tx\nb.jpg\ty\0\n",
        "2: a NUL byte in the label: save it as UTF-8",
    ),
    "UTF-16": (
        ".txt",
        "a.jpg\n".encode("utf-16"),
        "1: a NUL byte, which no path holds: save the list as UTF-8",
    ),
    "a label missing": (
        ".txt",
        "# list\na.jpg cat\nb.jpg\n",
        "3: no label, other than in line 2: label every line, or none",
    ),
    "a label too many": (
        ".txt",
        "a.jpg\nb.jpg cat\n",
        "2: a label, other than in line 1: label every line, or none",
    ),
    "no label but a path": (
        ".txt",
        "my photos/a.jpg\n",
        "1: 'photos/a.jpg' cannot be a label: "
        "write a TAB before the label, or set data.label=null where "
        "lines are paths alone",
    ),
    "an empty label": (
        ".csv",
        "path,label\na,1\nb, \n",
        "3: the label is empty: label every sample",
    ),
    "a fraction": (".csv", "path,label\na,1.0\n", "2: the label 1.0 is not a whole number"),
    "a fraction behind": (
        ".csv",
        "path,label\na,1\nb,2e.5\nb,-.5e3\n",
        "3: the label '2e.5' is a name, "
        "but the first sample's is a whole number: labels are all of one kind",
    ),
    "negative": (".txt", "a 0\nb -1\n", "2: the label '-1' is negative: labels count from 0"),
    "a number among names": (
        ".txt",
        "a cat\nb 7\n",
        "2: the label '7' is a whole number, but the first sample's is a name: labels are "
        "all of one kind",
    ),
    "too large": (
        ".txt",
        "a 3\nb 10000000\n",
        "2: the label '10000000' is too large: a number is that of a class, below 10,000,000",
    ),
    "far too large": (".txt", f"a 3\nb {'9' * 5000}\n", "2: the label '99999999999"),
    "no parquet": (".parquet", "path\na\n", " cannot be read as .parquet: "),
    "an empty parquet": (".parquet", b"", " cannot be read as .parquet: "),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, kind: str) -> None:
    suffix, content, message = BAD[kind]
    said = refused(tmp_path / f"l{suffix}", content)
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"paths": ["a"]}, "no column 'path'; did you mean 'paths'?"),
        ({"path": ["a"], "kind": ["b"]}, "no column 'label'; known: kind, path"),
        ({"path": pa.array([], pa.string())}, "no rows"),
        ({"path": [3]}, "the column 'path' holds int64, but should hold paths"),
        (
            {"path": ["a"], "label": [1.0]},
            "the column 'label' holds double, but should hold whole numbers or names",
        ),
        (
            {"path": ["a"], "label": [[1]]},
            "the column 'label' holds list<.*>, but should hold whole numbers or names",
        ),
        (
            {"path": ["a", None]},
            "row 2: no value in the column 'path': fill it in, or leave out the row",
        ),
        ({"path": ["a", "b"], "label": [None, 3]}, "row 1: no value in the column 'label'"),
        ({"path": ["a", "b"], "label": [3, -3]}, "row 2: the label '-3' is negative"),
        ({"path": [b"a", b"b\0"]}, "row 2: a NUL byte"),
    ],
)
def test_a_mistake_in_a_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    file = save_parquet(tmp_path / "l.parquet", **columns)
    with pytest.raises(DataError, match=f"^{file}: {message.replace('?', '[?]')}"):
        FileList(file=file).index()


def test_no_manifest_no_root_and_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=f"^{tmp_path}/no/l.txt: no such file: set data.file to the list of the samples",
    ):
        FileList(file=tmp_path / "no" / "l.txt").index()
    written(tmp_path / "l.txt", "a.jpg\n")
    with pytest.raises(
        DataError,
        match=f"^{tmp_path}/none: no such folder: set data.root to the folder that the paths are "
        "relative to",
    ):
        FileList(file=tmp_path / "l.txt", root=tmp_path / "none").index()
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(DataError, match=f"^{tmp_path}/folder.txt: cannot be read: Is a directory"):
        FileList(file=tmp_path / "folder.txt").index()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    with pytest.raises(DataError, match=f"^{tmp_path}/loop.txt: cannot be read: Too many levels"):
        FileList(file=tmp_path / "loop.txt").index()
    with pytest.raises(DataError, match=f"^{tmp_path}/loop.txt: no such folder"):
        FileList(file=tmp_path / "l.txt", root=tmp_path / "loop.txt").index()


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path) -> None:
    file = save_parquet(tmp_path / "l.parquet", path=["a.jpg"])
    code = (
        "import sys; sys.modules['pyarrow'] = None; from gpupipe.sources.file_list import "
        f"FileList; FileList(file={str(file)!r}).index()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        f"DataError: {file}: reading .parquet needs pyarrow: run 'pip install pyarrow', or "
        "save the list as .csv" in done.stderr
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("file: l.txt, labl: x", "1:40: data.labl: unknown key; did you mean 'label'?"),
        ("root: /x", "1:1: data.file: missing; write 'file: ...'"),
        (
            "file: l.lst",
            "1:33: data.file: l.lst should end in .txt, .csv, .tsv or .parquet: the ending says "
            "what the file's format is",
        ),
        (
            "file: ~nobody-of-this-name/l.txt",
            "1:33: data.file: ~nobody-of-this-name/l.txt names a home directory that cannot be "
            "found",
        ),
        ('file: "a\\0.txt"', "1:33: data.file: a NUL byte, which no path holds"),
        ("file: l.txt, path: x", "1:7: data: a .txt has no columns: leave out path"),
        ("file: l.csv, path: 3", "1:46: data.path is 3, but should be text"),
    ],
)
def test_a_mistake_in_the_yaml(tmp_path: Path, data: str, message: str) -> None:
    file = written(
        tmp_path / "c.yaml", f"data: {{source: file_list, {data}}}\npipeline: [decode]\n"
    )
    with pytest.raises(ConfigError) as error:
        config.read(file)
    assert str(error.value).startswith(f"{file}:{message}")


# --- any content


FREELY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
PIECES = st.sampled_from(
    [
        "path",
        "label",
        ",",
        "\t",
        " ",
        "\n",
        "\r\n",
        "\r",
        '"',
        "#",
        "a.jpg",
        "/",
        "..",
        "./",
        "\0",
        "0",
        "7",
        "-1",
        "1.5",
        "cat",
        "\ufeff",
        "é",
        "99999999",
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode())
TABLES = st.lists(st.lists(PIECES, max_size=4).map(",".join), max_size=8).map(
    lambda lines: "\n".join(["path,label", *lines]).encode()
)


def index_or_complaint(suffix: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            index = listed(Path(folder) / f"l{suffix}", content)
        except DataError as e:
            assert str(e).startswith(folder)
            return
        assert 0 < len(index) == len(index.names)
        assert 0 <= index.labels.min() <= index.labels.max() < len(index.classes)
        for i in range(len(index)):
            assert os.path.normpath(index.location(i)) == index.location(i), (
                "nothing leaves the root"
            )
            assert index.location(i).startswith(f"{folder}/")
            assert b"\0" not in os.fsencode(index.location(i))


@FREELY
@given(st.sampled_from([".txt", ".csv", ".tsv"]), st.binary(max_size=200) | TEXTS | TABLES)
@example(".csv", b"path\r\na\rb")
@example(".txt", b"\xef\xbb\xbf\xef\xbb\xbfa")
def test_any_content_is_an_index_or_a_complaint(suffix: str, content: bytes) -> None:
    index_or_complaint(suffix, content)


@pytest.fixture(scope="module")
def good_parquet(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return save_parquet(
        tmp_path_factory.mktemp("parquet") / "l.parquet", path=["a.jpg", "b.jpg"], label=["x", "y"]
    ).read_bytes()


@FREELY
@given(st.data())
def test_a_damaged_parquet_is_an_index_or_a_complaint(
    good_parquet: bytes, data: st.DataObject
) -> None:
    content = bytearray(good_parquet)
    for place, byte in data.draw(
        st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=3)
    ):
        content[place] = byte
    index_or_complaint(
        ".parquet",
        bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]),
    )


# --- the cached index


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what makes an index stale need not wait for two seconds until it is kept."""
    monkeypatch.setattr(index_file, "_RACY_SECONDS", -1.0)


def is_mapped(index: Index) -> bool:
    """Whether the index lies in the cached file: what was read anew is arrays in memory."""
    array: Any = index.labels
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def test_the_second_time_the_cached_index_is_used(tmp_path: Path, cache: Path, eager: None) -> None:
    first = listed(tmp_path / "l.txt", "b.jpg cat\na.jpg dog\n")
    assert not is_mapped(first)
    seen: list[Any] = []
    second = FileList(file=tmp_path / "l.txt").index(lambda *what: seen.append(what))
    assert is_mapped(second)
    assert seen == []
    assert found(second) == found(first)
    assert (second.classes, second.fingerprint, second.root, second.extra) == (
        first.classes,
        first.fingerprint,
        first.root,
        first.extra,
    )
    assert len(list((cache / "index").iterdir())) == 1


def write_other(file: Path) -> None:
    file.write_text("c.jpg cat\n")


def write_in_place_and_set_the_time_back(file: Path) -> None:
    """As many bytes in the same file under the old time: only the time of its inode tells."""
    then = file.stat().st_mtime_ns
    file.write_text("c.jpg cat\na.jpg dog\n")
    os.utime(file, ns=(then, then))


def put_another_in_its_place(file: Path) -> None:
    other = written(file.with_name("other"), "c.jpg cat\na.jpg dog\n")
    other.replace(file)


@pytest.mark.parametrize(
    "change",
    [write_other, write_in_place_and_set_the_time_back, put_another_in_its_place],
    ids=lambda c: c.__name__,
)
def test_a_change_is_noticed(tmp_path: Path, eager: None, change: Callable[[Path], None]) -> None:
    before = listed(tmp_path / "l.txt", "b.jpg cat\na.jpg dog\n")
    assert is_mapped(FileList(file=tmp_path / "l.txt").index())
    time.sleep(0.02)  # the clock tick of the file system
    change(tmp_path / "l.txt")
    after = FileList(file=tmp_path / "l.txt").index()
    assert not is_mapped(after)
    assert names(after)[0] == "c.jpg"
    assert after.fingerprint != before.fingerprint
    assert is_mapped(FileList(file=tmp_path / "l.txt").index()), "and the new index is kept"


def test_other_options_have_another_index(tmp_path: Path, cache: Path, eager: None) -> None:
    (tmp_path / "root").mkdir()
    file = written(tmp_path / "l.csv", "path,label,other,image\na,x,y,b\n")
    options: list[dict[str, Any]] = [
        {},
        {"path": "image"},
        {"label": "other"},
        {"label": None},
        {"root": tmp_path / "root"},
    ]
    for _ in range(2):
        every = [FileList(file=file, **o).index() for o in options]
        assert [(i.root, *found(i)[0]) for i in every] == [
            (str(tmp_path), "a", "x"),
            (str(tmp_path), "b", "x"),
            (str(tmp_path), "a", "y"),
            (str(tmp_path), "a", "0"),
            (str(tmp_path / "root"), "a", "x"),
        ]
    assert all(is_mapped(i) for i in every)
    assert len(list((cache / "index").iterdir())) == len(options)


def test_what_was_just_changed_is_not_kept(tmp_path: Path, cache: Path) -> None:
    listed(tmp_path / "l.txt", "a.jpg\n")
    assert not (cache / "index").exists()
    time.sleep(
        max(
            0.0,
            (tmp_path / "l.txt").stat().st_ctime + index_file._RACY_SECONDS + 0.05 - time.time(),
        )
    )
    FileList(file=tmp_path / "l.txt").index()
    assert is_mapped(FileList(file=tmp_path / "l.txt").index())


def test_a_cache_that_cannot_be_written_or_was_damaged_does_no_harm(
    tmp_path: Path, cache: Path, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(tmp_path / "l.txt", "a.jpg\n")
    (saved,) = (cache / "index").iterdir()
    saved.write_bytes(saved.read_bytes()[:-8])
    assert names(FileList(file=tmp_path / "l.txt").index()) == ["a.jpg"]
    monkeypatch.setenv("GPUPIPE_CACHE", str(written(tmp_path / "file", "")))
    assert names(FileList(file=tmp_path / "l.txt").index()) == ["a.jpg"]


def test_progress_counts_rows(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    file = written(tmp_path / "l.txt", "a.jpg 1\n" * 250_000)
    assert len(FileList(file=file).index(lambda *what: seen.append(what))) == 250_000
    assert seen == [
        ("reading", 100_000, None),
        ("reading", 200_000, None),
        ("reading", 250_000, None),
    ]
