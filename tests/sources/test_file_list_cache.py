"""When the index of a manifest that was read before may be used."""

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset import index_cache
from gpupipe.dataset.index import Index
from gpupipe.sources.file_list import FileList
from helpers.folders import make_files_old
from helpers.manifests import found, listed, names, written


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what makes an index stale need not wait for two seconds until it is kept."""
    make_files_old(monkeypatch)


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
            (str(tmp_path), "a", ""),
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
            (tmp_path / "l.txt").stat().st_ctime + index_cache.RACY_SECONDS + 0.05 - time.time(),
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
