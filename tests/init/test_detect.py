"""Which source reads a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpupipe.errors import GpupipeError
from gpupipe.init.detect import detect
from gpupipe.init.names import TRAIN
from helpers.init_runs import write_images


def sources(folder: Path) -> dict[str, str]:
    return {part: detected.source for part, detected in detect(folder).items()}


def test_folders_of_classes(tmp_path: Path) -> None:
    write_images(tmp_path, *(f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(3)))
    assert sources(tmp_path) == {TRAIN: "folder"}


def test_parts_below_folders_that_hold_nothing_else(tmp_path: Path) -> None:
    parts = ("train", "val")
    write_images(tmp_path, *(f"a/b/{part}/{k}/0.jpg" for part in parts for k in ("cat", "dog")))
    found = detect(tmp_path)
    assert {part: d.source for part, d in found.items()} == {TRAIN: "folder", "val": "folder"}
    assert str(found["val"].options["root"]).endswith("a/b/val")


def test_a_list_beside_images(tmp_path: Path) -> None:
    write_images(tmp_path, "images/0.jpg", "images/1.jpg")
    (tmp_path / "list.csv").write_text("path,label\n0.jpg,cat\n1.jpg,dog\n")
    assert sources(tmp_path) == {TRAIN: "file_list"}


def test_a_single_file(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 8, 8), np.uint8))
    assert sources(tmp_path / "images.npy") == {TRAIN: "numpy"}
    (tmp_path / "notes.doc").write_text("")
    with pytest.raises(GpupipeError, match="no source reads a file of this name"):
        detect(tmp_path / "notes.doc")


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    write_images(tmp_path, *(f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in range(2)))
    (tmp_path / "README").write_text("")
    assert "README" in detect(tmp_path)[TRAIN].unused
    assert detect(tmp_path, [(tmp_path / "README").absolute()])[TRAIN].unused == ""


def test_what_is_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpupipeError, match="no such folder"):
        detect(tmp_path / "missing")
    with pytest.raises(GpupipeError):
        detect(tmp_path)
