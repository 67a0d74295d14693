from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.missing_paths import missing_file, missing_folder


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
