"""What a manifest may not say: a mistake is one line with its place."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from gpupipe import config
from gpupipe.errors import ConfigError, DataError
from gpupipe.runtime.installation import install_command
from gpupipe.sources.file_list import FileList
from helpers.manifests import refused, save_parquet, written

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
    "a fraction": (".csv", "path,label\na,1.5\n", "2: the label 1.5 is not a whole number"),
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
        (
            {"path": ["a"], "label": pa.array([2**63], pa.uint64())},
            "the column 'label' .*9223372036854775808 not in range.* should hold .*set data.label",
        ),
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
        f"DataError: {file}: reading .parquet needs pyarrow: run {install_command('parquet')}, or "
        "save the list as .csv" in done.stderr
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("file: l.txt, labl: x", "1:40: data.labl: unknown key; did you mean 'label'?"),
        ("root: /x", "1:1: data.file: missing; write 'file: ...'"),
        (
            "file: l.lst",
            "1:33: data.file: l.lst should end in .txt, .csv, .tsv, .parquet or .jsonl: the ending "
            "says what the file's format is",
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
