"""Saved indexes, valid as long as their files are unchanged."""

import os
from pathlib import Path

import pytest

from gpupipe.dataset import index_cache
from gpupipe.dataset.index import Index, build_empty
from helpers.folders import make_files_old


class Reader:
    """Builds an index, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Index:
        self.count += 1
        return build_empty()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files that were written an hour ago: an index of newer ones is not kept."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_text("content")
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return paths


def test_the_path_depends_on_all_of_the_key(cache: Path) -> None:
    paths = {
        index_cache.get_path(*key)
        for key in (("a", 1), ("a", 2), ("b", 1), ("a",), ("a", 1, Path("/x")), ("a\udcff", 1))
    }
    assert len(paths) == 6
    assert {path.parent for path in paths} == {cache / "index"}
    assert index_cache.get_path("a", 1) == index_cache.get_path("a", 1)


def test_a_file_that_changed_or_a_condition_has_the_index_built_again(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    saved, read = tmp_path / "x.idx", Reader()

    def build() -> Index:
        return index_cache.load_or_build(saved, files, read)

    assert build().fingerprint == build().fingerprint
    assert read.count == 1
    files[1].write_text("other content")
    build()
    assert read.count == 2
    index_cache.load_or_build(saved, files, read, lambda index: False)
    assert read.count == 3
    saved.write_bytes(b"damaged")
    build()
    assert read.count == 4


def test_a_file_that_is_gone_is_an_error(files: list[Path], tmp_path: Path) -> None:
    files[0].unlink()
    with pytest.raises(FileNotFoundError):
        index_cache.load_or_build(tmp_path / "x.idx", files, Reader())
