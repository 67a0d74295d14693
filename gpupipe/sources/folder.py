"""folder: a folder a class, as torchvision's ImageFolder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe import datasets
from gpupipe import source as base
from gpupipe.cachedir import cache_dir
from gpupipe.errors import DataError
from gpupipe.source import Index, Progress, Source, quiet

EXTENSIONS = ("jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pnm", "jp2")
_RACY_SECONDS = 2.0
"""A folder changed this shortly before it was scanned may change again within the file system's clock tick: such a scan is not kept."""


class Folder(Source):
    """Images in `root`/CLASS/..., at any depth. Labels are the numbers of the class names in sorted order.

    root: the folder; ~ stands for the home directory. Hidden files and folders are left out.
    extensions: which files are images, without regard to case.
    fetch: the name of a data set to download to `root` where `root` does not exist.
    stand_in: how many images to make instead where that download fails.
    """

    name: ClassVar[str] = "folder"

    root: Annotated[Path, AfterValidator(Path.expanduser)]
    extensions: tuple[str, ...] = Field(default=EXTENSIONS, min_length=1)
    fetch: Annotated[str, AfterValidator(datasets.known)] | None = None
    stand_in: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    def index(self, progress: Progress = quiet) -> Index:
        place = datasets.present(self.root, self.fetch, self.stand_in, progress)
        root = place.root.resolve()
        saved = cache_dir() / "index" / f"{self._key(root)}.idx"
        index = base.open_saved(saved)
        if index is None or not _unchanged(root, index):
            started = time.time()
            index = self._scan(root, progress)
            if max(index.extra["times"].values()) < (started - _RACY_SECONDS) * 1e9:
                _try_to_save(index, saved)
        return replace(index, note=place.note)

    def absent(self) -> str:
        return datasets.absent(self.root, self.fetch, self.stand_in)

    def _key(self, root: Path) -> str:
        return hashlib.blake2b("\0".join([str(root), *self.extensions]).encode(), digest_size=16).hexdigest()

    def _scan(self, root: Path, progress: Progress) -> Index:
        suffixes = tuple(f".{e.lower().lstrip('.')}" for e in self.extensions)
        paths: list[str] = []
        labels: list[int] = []
        classes = sorted(e.name for e in os.scandir(root) if _is_class(e))
        times = {"": os.stat(root).st_mtime_ns}
        for number, name in enumerate(classes):
            found = sorted(_images(root, name, suffixes, times))
            if not found:
                raise DataError(f"{root / name}: no image ({', '.join(suffixes)}): remove the empty class folder, or set data.extensions")
            paths += found
            labels += [number] * len(found)
            progress("scanning", len(paths), None)
        if not classes:
            raise DataError(f"{root}: no class folders: a folder source reads ROOT/CLASS/image.jpg, so put the images into a folder for each class")
        return base.build(str(root), paths, np.array(labels, np.int64), classes, {"times": times})


def _is_class(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_dir()


def _images(root: Path, folder: str, suffixes: tuple[str, ...], times: dict[str, int]) -> Iterator[str]:
    """Paths, relative to root, of the images under a folder; `times` gains the modification times of the folders read."""
    times[folder] = os.stat(root / folder).st_mtime_ns
    for entry in os.scandir(root / folder):
        if entry.name.startswith("."):
            continue
        if entry.name.lower().endswith(suffixes):
            yield f"{folder}/{entry.name}"
        elif entry.is_dir():
            yield from _images(root, f"{folder}/{entry.name}", suffixes, times)


def _unchanged(root: Path, index: Index) -> bool:
    """Whether no folder gained, lost or renamed an entry since the scan."""
    try:
        return all(os.stat(root / folder).st_mtime_ns == then for folder, then in index.extra["times"].items())
    except OSError:
        return False


def _try_to_save(index: Index, path: Path) -> None:
    """Keep the index for the next time. Where the cache cannot be written, the next time scans again, and nothing else is lost."""
    with contextlib.suppress(OSError):
        base.save(index, path)
