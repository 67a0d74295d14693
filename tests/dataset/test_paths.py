"""Paths of a manifest, inside the root or not; messages for paths that are not there."""

from pathlib import Path

import pytest

from gpupipe.dataset.paths import missing_file, missing_folder
from gpupipe.errors import DataError
from gpupipe.sources.file_list import FileList
from helpers.manifests import listed, names, refused, save_parquet, written


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    for name in ("a.tar", "b.tar"):
        (tmp_path / "shards" / name).write_bytes(b"")
    return tmp_path / "shards"


def test_a_folder_where_files_are_asked_for(shards: Path) -> None:
    found = str(missing_file(shards, "data.shards", "put it there", "shard"))
    assert found == f"{shards}: this is a folder, and data.shards names files: write {shards}/*.tar"
    (shards / "c.txt").write_bytes(b"")
    assert str(missing_file(shards, "data.shards", "")).endswith(f"write {shards}/*")


def test_a_file_where_a_folder_is_asked_for(shards: Path) -> None:
    found = str(missing_folder(shards / "a.tar", "data.root", "put the data there"))
    assert "this is a file, and data.root is a folder" in found
    assert "webdataset" in found


def test_a_relative_path_names_the_folder_where_it_begins(shards: Path) -> None:
    found = str(missing_folder(Path("none"), "data.root", "set it"))
    assert found == f"none: no such folder in the working directory, {shards.parent}: set it"
    assert str(missing_folder(shards / "none", "data.root", "set it")) == (
        f"{shards}/none: no such folder: set it"
    )


@pytest.mark.parametrize(
    ("url", "words"), [("file:///missing", "write /missing"), ("s3://b/c", "source: remote")]
)
def test_a_url_where_a_path_is_asked_for(shards: Path, url: str, words: str) -> None:
    found = str(missing_folder(Path(url), "data.root", "set it"))
    assert "data.root is a path, and no URL" in found
    assert words in found


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
