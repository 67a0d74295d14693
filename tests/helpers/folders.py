"""Folders of images as tests make them, and what an index says of them."""

import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset import index_cache
from gpupipe.dataset.index import Index


def grow(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def found(index: Index) -> list[tuple[str, str]]:
    """(path relative to the root, class) of every row."""
    return [
        (os.path.relpath(index.location(i), index.root), index.classes[label])
        for i, label in enumerate(index.labels)
    ]


def names(index: Index) -> list[str]:
    return [name for name, _ in found(index)]


def make_files_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock a minute ahead: indexes of files that were just written are then saved.

    The times of the files cannot be set back, since a file system sets ctime itself.
    """
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)


def settle(root: Path) -> None:
    """Wait until a scan may be kept: the time of a folder's inode cannot be set back."""
    newest = max(p.stat().st_ctime for p in [root, *root.rglob("*")] if p.is_dir())
    time.sleep(max(0.0, newest + index_cache.RACY_SECONDS + 0.05 - time.time()))


def is_mapped(index: Index) -> bool:
    """Whether the index lies in the cached file: a scan makes arrays in memory."""
    base = index.labels
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
