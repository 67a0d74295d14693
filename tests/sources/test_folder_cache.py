"""When the folder source may use the index that it found before."""

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from gpupipe.dataset.index_cache import open_saved, save
from gpupipe.sources.folder import Folder
from helpers.folders import found, grow, is_mapped, make_files_old, names, settle


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what makes an index stale need not wait for two seconds until it is kept."""
    make_files_old(monkeypatch)


def cached_files(cache: Path) -> list[Path]:
    return sorted((cache / "index").iterdir()) if (cache / "index").is_dir() else []


def test_the_second_time_the_cached_index_is_used(tmp_path: Path, cache: Path, eager: None) -> None:
    grow(tmp_path, "a/1.jpg", "a/2.jpg", "b/deep/3.jpg")
    first = Folder(root=tmp_path).index()
    assert not is_mapped(first)
    (file,) = cached_files(cache)
    written = file.stat().st_mtime_ns
    second = Folder(root=tmp_path).index()
    assert is_mapped(second)
    assert found(second) == found(first)
    assert (second.classes, second.fingerprint, second.root, second.extra) == (
        first.classes,
        first.fingerprint,
        first.root,
        first.extra,
    )
    assert file.stat().st_mtime_ns == written


def test_other_extensions_have_another_index(tmp_path: Path, cache: Path, eager: None) -> None:
    grow(tmp_path, "a/1.jpg", "a/2.png")
    for _ in range(2):
        assert names(Folder(root=tmp_path, extensions=("jpg",)).index()) == ["a/1.jpg"]
        assert names(Folder(root=tmp_path, extensions=("png",)).index()) == ["a/2.png"]
    assert len(cached_files(cache)) == 2


def add(root: Path) -> None:
    grow(root, "b/deep/new.jpg")


def remove(root: Path) -> None:
    (root / "b/deep/3.jpg").unlink()


def rename(root: Path) -> None:
    (root / "b/deep/3.jpg").rename(root / "b/deep/33.jpg")


def move(root: Path) -> None:
    (root / "b/deep/3.jpg").rename(root / "a/3.jpg")


def add_class(root: Path) -> None:
    grow(root, "c/1.jpg")


def add_folder(root: Path) -> None:
    grow(root, "a/deep/1.jpg")


def rename_class(root: Path) -> None:
    (root / "a").rename(root / "z")


def remove_class(root: Path) -> None:
    shutil.rmtree(root / "a")


def replace_class(root: Path) -> None:
    shutil.rmtree(root / "a")
    grow(root, "a/other.jpg")


def add_and_set_the_time_back(root: Path) -> None:
    """As tar, rsync -a and cp -a leave a folder that they have added to."""
    then = os.stat(root / "a").st_mtime_ns
    grow(root, "a/new.jpg")
    os.utime(root / "a", ns=(then, then))


CHANGES = [
    add,
    remove,
    rename,
    move,
    add_class,
    add_folder,
    rename_class,
    remove_class,
    replace_class,
    add_and_set_the_time_back,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_a_change_is_noticed(tmp_path: Path, eager: None, change: object) -> None:
    grow(tmp_path, "a/1.jpg", "a/2.jpg", "b/0.jpg", "b/deep/3.jpg", "b/deep/4.jpg")
    before = Folder(root=tmp_path).index()
    assert is_mapped(Folder(root=tmp_path).index())
    time.sleep(0.02)  # the clock tick of the file system
    change(tmp_path)  # type: ignore[operator]
    after = Folder(root=tmp_path).index()
    assert not is_mapped(after)
    assert found(after) != found(before)
    assert [p for p, _ in ImageFolder(str(tmp_path)).samples] == [
        after.location(i) for i in range(len(after))
    ]
    assert after.fingerprint != before.fingerprint
    assert is_mapped(Folder(root=tmp_path).index()), "and the new index is kept"


def test_another_target_of_a_linked_class_is_noticed(tmp_path: Path, eager: None) -> None:
    grow(tmp_path / "elsewhere", "one/1.jpg", "two/2.jpg")
    root = grow(tmp_path / "root", "a/0.jpg")
    (root / "b").symlink_to(tmp_path / "elsewhere" / "one")
    assert names(Folder(root=root).index()) == ["a/0.jpg", "b/1.jpg"]
    time.sleep(0.02)
    (tmp_path / "elsewhere" / "one").rename(tmp_path / "elsewhere" / "three")
    (tmp_path / "elsewhere" / "two").rename(tmp_path / "elsewhere" / "one")
    assert names(Folder(root=root).index()) == ["a/0.jpg", "b/2.jpg"]


def test_a_file_that_changes_inside_does_not_make_the_index_stale(
    tmp_path: Path, eager: None
) -> None:
    grow(tmp_path, "a/1.jpg")
    Folder(root=tmp_path).index()
    time.sleep(0.02)
    (tmp_path / "a" / "1.jpg").write_bytes(b"other")
    assert is_mapped(Folder(root=tmp_path).index())


def test_a_scan_of_what_was_just_changed_is_not_kept(tmp_path: Path, cache: Path) -> None:
    grow(tmp_path, "a/1.jpg", "b/1.jpg")
    Folder(root=tmp_path).index()
    assert cached_files(cache) == []
    settle(tmp_path)
    grow(tmp_path, "b/2.jpg")
    Folder(root=tmp_path).index()
    assert cached_files(cache) == [], "one folder that was just changed is enough"
    settle(tmp_path)
    Folder(root=tmp_path).index()
    assert len(cached_files(cache)) == 1
    assert is_mapped(Folder(root=tmp_path).index())


def test_a_cache_that_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: None
) -> None:
    grow(tmp_path / "root", "a/1.jpg")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert names(Folder(root=tmp_path / "root").index()) == ["a/1.jpg"]
    assert (tmp_path / "file").read_text() == ""


def test_a_disk_that_is_full_does_no_harm(tmp_path: Path, cache: Path, eager: None) -> None:
    """A limit on the size of a file stands in for the full disk; what was begun is not left
    behind.
    """
    import resource

    grow(tmp_path, *(f"a/{'long' * 40}{n}.jpg" for n in range(40)))
    limits, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        index = Folder(root=tmp_path).index()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(index) == 40
    assert cached_files(cache) == []


DAMAGE = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "magic only": lambda data: data[:16],
    "in the header": lambda data: data[:60],
    "in the columns": lambda data: data[: len(data) // 2],
    "the last byte missing": lambda data: data[:-1],
    "a byte too many": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"hello\n" * 100,
    "header not JSON": lambda data: data[:32] + b"?" + data[33:],
    "header length absurd": lambda data: data[:16] + b"\xff" * 8 + data[24:],
    "another version": lambda data: data.replace(b"gpupipe-index-", b"gpupipe-table-"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_scanned_anew(
    tmp_path: Path, cache: Path, eager: None, damage: str
) -> None:
    grow(tmp_path, *(f"class{c}/{n}.jpg" for c in range(3) for n in range(50)))
    first = Folder(root=tmp_path).index()
    (file,) = cached_files(cache)
    whole = file.read_bytes()
    file.write_bytes(DAMAGE[damage](whole))
    assert open_saved(file) is None
    again = Folder(root=tmp_path).index()
    assert not is_mapped(again)
    assert found(again) == found(first)
    assert file.read_bytes() == whole, "and mended"


def test_an_index_of_another_folder_is_not_used(tmp_path: Path, cache: Path, eager: None) -> None:
    grow(tmp_path / "one", "a/1.jpg")
    grow(tmp_path / "two", "b/2.jpg")
    Folder(root=tmp_path / "one").index()
    (one,) = cached_files(cache)
    Folder(root=tmp_path / "two").index()
    (two,) = set(cached_files(cache)) - {one}
    shutil.copy(one, two)
    assert names(Folder(root=tmp_path / "two").index()) == ["b/2.jpg"]


def test_an_index_without_times_is_not_used(tmp_path: Path, cache: Path, eager: None) -> None:
    grow(tmp_path, "a/1.jpg")
    index = Folder(root=tmp_path).index()
    (file,) = cached_files(cache)
    for extra in (
        {},
        {"times": {}},
        {"times": None},
        {"times": []},
        {"times": {"a": index.extra["times"]["a"]}},
    ):
        save(replace(index, extra=extra), file)
        assert not is_mapped(Folder(root=tmp_path).index()), extra
