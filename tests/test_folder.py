"""The folder source: what it finds, in ImageFolder's order, and when it may use the index that it found before."""

from __future__ import annotations

import io
import json
import mmap
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import gpupipe
from gpupipe import index as indexes
from gpupipe import index_file
from gpupipe.errors import DataError
from gpupipe.index import Array, Column, Files, Index, Spans, Texts, build
from gpupipe.index_file import open_saved, save
from gpupipe.sources.folder import Folder


@pytest.fixture(scope="module")
def jpegs(faces: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(faces.glob("*/*.jpg"))]


def grow(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def found(index: Index) -> list[tuple[str, str]]:
    """(path relative to the root, class) of every row."""
    return [(os.path.relpath(index.path(i), index.root), index.classes[label]) for i, label in enumerate(index.labels)]


def names(index: Index) -> list[str]:
    return [name for name, _ in found(index)]


# --- what is found


def test_the_same_as_image_folder_in_the_same_order(tmp_path: Path) -> None:
    grow(tmp_path, "b/2.JPG", "b/10.jpg", "b/1.png", "B/upper.jpeg", "a b/x y.webp", "c/z.jpg", "c/deep/er/1.TIFF", "c/deep/2.bmp", "c/a.ppm")
    grow(tmp_path, "c/deep b/3.pgm", "c/deep-er/4.tif", "d/1.jpg.jpg", "d/notes.txt", "d/jpg", "d/x.jpg.bak", "ü/ö.jpg", "loose.jpg")
    (tmp_path / "d" / "none").mkdir()
    theirs = ImageFolder(str(tmp_path))
    index = Folder(root=tmp_path).index()
    assert index.classes == theirs.classes
    assert [index.path(i) for i in range(len(index))] == [path for path, _ in theirs.samples]
    assert index.labels.tolist() == theirs.targets
    assert len(index) == 13


def test_on_real_photographs_too(photos: Path) -> None:
    theirs = ImageFolder(str(photos))
    index = Folder(root=photos).index()
    assert index.classes == theirs.classes
    assert [(index.path(i), int(index.labels[i])) for i in range(len(index))] == [(os.path.realpath(p), t) for p, t in theirs.samples]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "a/.2.jpg", "a/._1.jpg", "a/.thumbnails/3.jpg", ".git/4.jpg", "a/b/.5.jpg", "a/b/6.jpg")
    index = Folder(root=tmp_path).index()
    assert names(index) == ["a/1.jpg", "a/b/6.jpg"]
    assert index.classes == ["a"]


def test_a_folder_with_an_images_name_is_a_folder(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "a/x.jpg/2.jpg", "y.jpg/3.jpg")
    (tmp_path / "a" / "empty.jpg").mkdir()
    assert found(Folder(root=tmp_path).index()) == [("a/1.jpg", "a"), ("a/x.jpg/2.jpg", "a"), ("y.jpg/3.jpg", "y.jpg")]


def test_what_is_no_file_is_left_out_but_a_broken_link_is_not(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever. A link to nothing is a sample that is lost, and must be reported as one."""
    grow(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a" / "2.jpg")
    (tmp_path / "a" / "3.jpg").symlink_to(tmp_path / "nowhere.jpg")
    index = Folder(root=tmp_path).index()
    assert names(index) == ["a/1.jpg", "a/3.jpg"]


def test_extensions(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "a/2.PNG", "a/3.png", "a/4.data")
    assert names(Folder(root=tmp_path, extensions=("png",)).index()) == ["a/2.PNG", "a/3.png"]
    assert names(Folder(root=tmp_path, extensions=(".Data", "JPG")).index()) == ["a/1.jpg", "a/4.data"]


def test_links_are_followed(tmp_path: Path) -> None:
    grow(tmp_path / "elsewhere", "one/1.jpg", "two/2.jpg", "3.jpg")
    root = grow(tmp_path / "root", "a/0.jpg")
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "one")
    (root / "a" / "inner").symlink_to(tmp_path / "elsewhere" / "two", target_is_directory=True)
    (root / "a" / "4.jpg").symlink_to(tmp_path / "elsewhere" / "3.jpg")
    theirs = ImageFolder(str(root))
    index = Folder(root=root).index()
    assert found(index) == [("a/0.jpg", "a"), ("a/4.jpg", "a"), ("a/inner/2.jpg", "a"), ("linked/1.jpg", "linked")]
    assert [index.path(i) for i in range(len(index))] == [p for p, _ in theirs.samples]


def test_a_linked_root_is_the_folder_that_it_points_at(tmp_path: Path) -> None:
    root = grow(tmp_path / "root", "a/0.jpg")
    (tmp_path / "link").symlink_to(root)
    assert Folder(root=tmp_path / "link").index().path(0) == str(root / "a" / "0.jpg")


@pytest.mark.parametrize("target", [".", "..", "../..", "../../../root/a"])
def test_a_link_back_is_named_and_not_followed_for_ever(tmp_path: Path, target: str) -> None:
    root = grow(tmp_path / "root", "a/0.jpg", "a/b/1.jpg")
    (root / "a" / "b" / "back").symlink_to(target)
    with pytest.raises(DataError, match=f"^{root}/a/b/back.*: a link to a folder that it lies in"):
        Folder(root=root).index()


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    root = grow(tmp_path / "root", "a/0.jpg")
    (root / "a" / "self").symlink_to("self")
    with pytest.raises(DataError, match=f"^{root}/a/self: cannot be read"):
        Folder(root=root).index()


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "b/notes.txt", "c/1.jpg")
    with pytest.raises(DataError, match=rf"^{tmp_path}/b: no image \(\.jpg, .*remove the empty class folder, or set data\.extensions"):
        Folder(root=tmp_path).index()


def test_no_class_folders(tmp_path: Path) -> None:
    grow(tmp_path, "1.jpg", ".hidden/2.jpg")
    with pytest.raises(DataError, match=rf"^{tmp_path}: no class folders: .*ROOT/CLASS/image\.jpg"):
        Folder(root=tmp_path).index()


def test_no_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/none: no such folder"):
        Folder(root=tmp_path / "none").index()


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    grow(tmp_path / "images", "a/1.jpg")
    assert Folder(root=Path("~/images")).index().root == str(tmp_path / "images")


def test_progress_counts_images(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    Folder(root=grow(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")).index(lambda *what: seen.append(what))
    assert seen == [("scanning", 2, None), ("scanning", 3, None)]


# --- names


ODD_NAMES = ["plain.jpg", "with space.jpg", " .jpg", "new\nline.jpg", "tab\t.jpg", "naïve Ωµ 图.jpg", "é.jpg", "🙂.jpg", "percent%20.jpg", "'quote\".jpg",
             "back\\slash.jpg", "-dash.jpg", "*.jpg", "l" * 240 + ".jpg", os.fsdecode(b"latin1-\xe9\xff.jpg"), os.fsdecode(b"\xff\xfe.jpg")]  # fmt: skip


def test_any_file_name_is_read_right(tmp_path: Path, jpegs: list[bytes]) -> None:
    """Each odd name holds another image: the pixels show that the right file was opened."""
    classes = ["plain", "with space", "line\nbreak", "クラス", os.fsdecode(b"byte-\xe9")]
    for n, name in enumerate(ODD_NAMES):
        grow(tmp_path, f"{classes[n % 5]}/{name}")
        (tmp_path / classes[n % 5] / name).write_bytes(jpegs[n])
    settle(tmp_path)
    for _ in ("scanned", "from the cached index"):
        with gpupipe.load({"data": {"source": "folder", "root": tmp_path}, "pipeline": ["decode"]}, batch_size=5, device="cpu", ids=True) as loader:
            seen = {}
            for batch in loader:
                for id, label, image in zip(batch["id"].tolist(), batch["label"].tolist(), batch["image"], strict=True):
                    path = Path(loader.index.path(id))
                    seen[path.name] = image.sum().item()
                    assert path.parent == tmp_path / loader.index.classes[label]
    assert set(seen) == set(ODD_NAMES)
    assert seen == {name: pixel_sum(jpegs[n]) for n, name in enumerate(ODD_NAMES)}


def pixel_sum(jpeg: bytes) -> int:
    return int(np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.int64).sum())


def test_a_root_whose_name_is_not_unicode(tmp_path: Path, jpegs: list[bytes]) -> None:
    root = grow(tmp_path / os.fsdecode(b"r\xf6\xf6t"), "a/1.jpg")
    (root / "a" / "1.jpg").write_bytes(jpegs[0])
    settle(root)
    index = Folder(root=root).index()
    assert index.path(0) == str(root / "a" / "1.jpg")
    assert is_mapped(Folder(root=root).index())
    assert index.columns["image"].encoded_paths(np.array([0]))[0].tobytes() == os.fsencode(root) + b"/a/1.jpg"


# --- the cached index


def settle(root: Path) -> None:
    """Wait until a scan may be kept: the time of a folder's inode cannot be set back."""
    newest = max(p.stat().st_ctime for p in [root, *root.rglob("*")] if p.is_dir())
    time.sleep(max(0.0, newest + index_file._RACY_SECONDS + 0.05 - time.time()))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of what makes an index stale need not wait for two seconds until it is kept."""
    monkeypatch.setattr(index_file, "_RACY_SECONDS", -1.0)


def is_mapped(index: Index) -> bool:
    """Whether the index lies in the cached file: a scan makes arrays in memory."""
    base = index.labels
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


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
    assert (second.classes, second.fingerprint, second.root, second.extra) == (first.classes, first.fingerprint, first.root, first.extra)
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


CHANGES = [add, remove, rename, move, add_class, add_folder, rename_class, remove_class, replace_class, add_and_set_the_time_back]


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
    assert [p for p, _ in ImageFolder(str(tmp_path)).samples] == [after.path(i) for i in range(len(after))]
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


def test_a_file_that_changes_inside_does_not_make_the_index_stale(tmp_path: Path, eager: None) -> None:
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


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eager: None) -> None:
    grow(tmp_path / "root", "a/1.jpg")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert names(Folder(root=tmp_path / "root").index()) == ["a/1.jpg"]
    assert (tmp_path / "file").read_text() == ""


def test_a_disk_that_is_full_does_no_harm(tmp_path: Path, cache: Path, eager: None) -> None:
    """A limit on the size of a file stands in for the full disk; what was begun is not left behind."""
    import resource
    import signal

    grow(tmp_path, *(f"a/{'long' * 40}{n}.jpg" for n in range(40)))
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
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
    "header not JSON": lambda data: data[:24] + b"?" + data[25:],
    "header length absurd": lambda data: data[:16] + b"\xff" * 8 + data[24:],
    "another version": lambda data: data.replace(b"gpupipe-index-2", b"gpupipe-index-1"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_scanned_anew(tmp_path: Path, cache: Path, eager: None, damage: str) -> None:
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


HEADERS = {
    "no object": lambda header: [1, 2],
    "no arrays": lambda header: {k: v for k, v in header.items() if k != "arrays"},
    "arrays no object": lambda header: header | {"arrays": 3},
    "a column missing": lambda header: header | {"arrays": {k: v for k, v in header["arrays"].items() if k != "names.ends"}},
    "objects": lambda header: header | {"arrays": header["arrays"] | {"names.letters": ["|O", [10]]}},
    "floats": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<f8", header["arrays"]["labels"][1]]}},
    "a negative length": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", [-1]]}},
    "a length in words": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", "many"]}},
    "no length": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", None]}},
    "beyond the end": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", [10**6]]}},
    "beyond all memory": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", [10**40]]}},
    "fewer labels than names": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", [1]]}},
    "a length for all": lambda header: header | {"arrays": header["arrays"] | {"labels": ["<i8", 3]}},
    "no columns": lambda header: header | {"columns": {}},
    "columns no object": lambda header: header | {"columns": []},
    "a column of another kind": lambda header: header | {"columns": {"image": {"kind": "spans", "root": "/images", "array": None}}},
    "a column's root a number": lambda header: header | {"columns": {"image": {"kind": "files", "root": 1, "named": True}}},
    "root a number": lambda header: header | {"root": 1},
    "no root": lambda header: {k: v for k, v in header.items() if k != "root"},
    "classes a number": lambda header: header | {"classes": 1},
    "extra a list": lambda header: header | {"extra": []},
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_foreign_header_is_no_index(tmp_path: Path, change: str) -> None:
    save(some_index(), tmp_path / "some.idx")
    rewrite(tmp_path / "some.idx", lambda header: header)
    assert open_saved(tmp_path / "some.idx") is not None, "the rewriting itself does no harm"
    rewrite(tmp_path / "some.idx", HEADERS[change])
    assert open_saved(tmp_path / "some.idx") is None


def rewrite(file: Path, change: object) -> None:
    """Give an index file another header."""
    data, start, place = file.read_bytes(), 24, index_file._ALIGNMENT
    end = start + int.from_bytes(data[16:24], "little")
    text = json.dumps(change(json.loads(data[start:end]))).encode()  # type: ignore[operator]
    columns = data[end + -end % place :]
    header = data[:16] + len(text).to_bytes(8, "little") + text
    file.write_bytes(header + bytes(-len(header) % place) + columns)


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
    for extra in ({}, {"times": {}}, {"times": None}, {"times": []}, {"times": {"a": index.extra["times"]["a"]}}):
        save(replace(index, extra=extra), file)
        assert not is_mapped(Folder(root=tmp_path).index()), extra


# --- the index itself


def some_index(**changes: object) -> Index:
    given = {"root": "/images", "names": ["a/1.jpg", "b/2.jpg", "b/3.jpg"], "labels": np.array([0, 1, 1]), "classes": ["a", "b"], "extra": {"times": {"": 1}}}
    return build(**(given | changes))  # type: ignore[arg-type]


def test_saved_and_opened_again(tmp_path: Path) -> None:
    index = some_index(names=["a/ü.jpg", os.fsdecode(b"b/\xff.jpg"), "b/" + "x" * 999])
    save(index, tmp_path / "new" / "some.idx")
    again = open_saved(tmp_path / "new" / "some.idx")
    assert again is not None
    assert [again.path(i) for i in range(3)] == [index.path(i) for i in range(3)]
    assert again.labels.tolist() == [0, 1, 1]
    assert (again.root, again.classes, again.fingerprint, again.extra) == (index.root, index.classes, index.fingerprint, index.extra)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["some.idx"]


def test_columns_of_all_kinds_are_saved_and_opened_again(tmp_path: Path) -> None:
    place, shapes = np.arange(3, dtype=np.int64), np.array([[1, 2], [3, 4], [5, 6]])
    files = Texts.of(["x.tar", "y.tar", "z.tar"])
    columns: dict[str, Column] = {
        "image": Files("/images", Texts.of(["a/1.jpg", "b/2.jpg", "b/3.jpg"])),
        "mask": Files("/masks", Texts.of(["m1", "m2", "m3"])),
        "depth": Spans("/tars", files, place.astype(np.int32), place * 10, place + 1, Array("float32", (2, 3))),
        "sound": Spans("", files, place.astype(np.int32), place, place, Array("int16", None, shapes)),
    }
    index = some_index(columns=columns, values={"weight": np.array([0.5, 1.5, 2.5]), "box": np.arange(12).reshape(3, 4)})
    save(index, tmp_path / "some.idx")
    again = open_saved(tmp_path / "some.idx")
    assert again is not None
    assert list(again.columns) == list(columns)
    assert [again.span(2, name) for name in columns] == [index.span(2, name) for name in columns]
    assert again.span(2, "depth") == ("/tars/z.tar", 20, 3)
    assert [again.columns[n].array and again.columns[n].array.shape_of(1) for n in columns] == [None, None, (2, 3), (3, 4)]
    assert {n: v.tolist() for n, v in again.values.items()} == {"weight": [0.5, 1.5, 2.5], "box": np.arange(12).reshape(3, 4).tolist()}
    part = again.subset(np.array([2, 0]))
    assert [part.span(0, name) for name in columns] == [index.span(2, name) for name in columns]
    assert (part.values["weight"].tolist(), part.columns["sound"].array.shape_of(1)) == ([2.5, 0.5], (1, 2))


def test_the_fingerprint_is_of_all_columns_and_values() -> None:
    files, place = Texts.of(["x.tar"]), np.arange(3, dtype=np.int64)

    def spans(**changes: Any) -> Index:
        given: dict[str, Any] = {"root": "/", "files": files, "file": np.zeros(3, np.int32), "offset": place, "length": place, "array": Array("float32", (2,))}
        return some_index(columns={"image": Spans(**(given | changes))})

    others = [
        some_index(),
        some_index(values={"weight": place}),
        some_index(values={"weight": place + 1}),
        some_index(columns={"image": Files("/images", Texts.of(["a", "b", "c"]))}),
        spans(),
        spans(array=None),
        spans(array=Array("int16", (2,))),
        spans(array=Array("float32", None, place[:, None])),
        spans(length=place + 1),
        spans(files=Texts.of(["y.tar"])),
    ]
    assert len({index.fingerprint for index in others}) == len(others)
    assert spans(root="/elsewhere", offset=place + 1).fingerprint == spans().fingerprint


def test_an_index_of_nothing_can_be_saved(tmp_path: Path) -> None:
    save(indexes.nothing(), tmp_path / "none.idx")
    again = open_saved(tmp_path / "none.idx")
    assert again is not None
    assert len(again) == 0


def test_no_file_is_no_index(tmp_path: Path) -> None:
    assert open_saved(tmp_path / "none.idx") is None
    assert open_saved(tmp_path) is None


def test_an_index_in_use_survives_a_new_one_in_its_place(tmp_path: Path) -> None:
    save(some_index(), tmp_path / "some.idx")
    held = open_saved(tmp_path / "some.idx")
    assert held is not None
    save(some_index(names=["c/9.jpg"], labels=np.array([0]), classes=["c"]), tmp_path / "some.idx")
    assert held.path(2) == "/images/b/3.jpg"


def test_the_fingerprint_is_of_paths_labels_and_classes_but_not_of_the_root() -> None:
    plain = some_index().fingerprint
    assert some_index().fingerprint == plain
    assert some_index(root="/elsewhere").fingerprint == plain
    assert some_index(extra={"times": {"": 2}}).fingerprint == plain
    others = [
        some_index(names=["a/1.jpg", "b/2.jpg", "b/4.jpg"]),
        some_index(names=["a/1.jpg", "b/3.jpg", "b/2.jpg"]),
        some_index(names=["a/1.jpgb", "/2.jpg", "b/3.jpg"]),
        some_index(names=["a/1.jpg", "b/2.jpg"], labels=np.array([0, 1])),
        some_index(labels=np.array([0, 0, 1])),
        some_index(classes=["a", "c"]),
        some_index(classes=["a", "b", "c"]),
    ]
    assert len({plain, *(index.fingerprint for index in others)}) == len(others) + 1


def test_two_copies_of_a_folder_have_one_fingerprint(tmp_path: Path) -> None:
    grow(tmp_path / "one", "b/1.jpg", "a/2.jpg")
    grow(tmp_path / "two", "a/2.jpg", "b/1.jpg")
    assert Folder(root=tmp_path / "one").index().fingerprint == Folder(root=tmp_path / "two").index().fingerprint


def test_a_home_that_cannot_be_found_is_a_mistake_in_the_config() -> None:
    with pytest.raises(gpupipe.ConfigError, match="home directory"):
        gpupipe.load({"data": {"source": "folder", "root": "~nobody-of-this-name/x"}, "pipeline": ["decode"]})
