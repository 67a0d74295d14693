"""Data sets with one folder per class."""

from pathlib import Path

import pytest

from gpupipe.dataset.class_folders import scan
from gpupipe.errors import DataError
from gpupipe.runtime.progress import ignore_progress


def write(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_files_are_listed_as_imagefolder_lists_them(tmp_path: Path) -> None:
    import torchvision

    names = ["b/2.jpg", "b/10.JPG", "a/x/1.jpg", "a/2.jpg", "a/x.jpg", "a/X/1.jpg", "b/note.txt"]
    theirs = torchvision.datasets.ImageFolder(write(tmp_path, *names))
    expected = [(str(Path(path).relative_to(tmp_path)), label) for path, label in theirs.samples]
    write(tmp_path, "a/.hidden.jpg", ".c/1.jpg", "top.jpg")
    found = scan(tmp_path, ("jpg",), "image", ignore_progress)
    assert found.classes == ["a", "b"]
    assert list(zip(found.paths, found.labels.tolist(), strict=True)) == expected
    assert set(found.times) == {"", "a", "a/x", "a/X", "b"}


def test_without_labels_folders_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path, "b/1.jpg", "a/2.jpg", "top.jpg")
    found = scan(tmp_path, (".jpg",), "image", ignore_progress, has_labels=False)
    assert found.paths == ["top.jpg", "a/2.jpg", "b/1.jpg"]
    assert (found.labels.tolist(), found.classes) == ([-1, -1, -1], [])


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders"):
        scan(tmp_path, ("jpg",), "image", ignore_progress)
    with pytest.raises(DataError, match="no image"):
        scan(tmp_path, ("jpg",), "image", ignore_progress, has_labels=False)
    write(tmp_path, "a/1.jpg", "b/1.png")
    with pytest.raises(DataError, match=rf"{tmp_path}/b: no image \(\.jpg\)"):
        scan(tmp_path, ("jpg",), "image", ignore_progress)
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    with pytest.raises(DataError, match="a/loop: a link to a folder that it lies in"):
        scan(tmp_path, ("jpg", "png"), "image", ignore_progress)
    with pytest.raises(DataError, match="cannot be read while the folder is scanned"):
        scan(tmp_path / "nowhere", ("jpg",), "image", ignore_progress)
