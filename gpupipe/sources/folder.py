"""folder: a folder a class, as torchvision's ImageFolder."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe import datasets, index_file
from gpupipe.cachedir import cache_dir
from gpupipe.errors import DataError
from gpupipe.index import Index, build
from gpupipe.parameters import WHOLE, expanded
from gpupipe.source import Progress, Source, quiet

EXTENSIONS = ("jpg", "jpeg", "png", "bmp", "webp", "tif", "tiff", "ppm", "pgm", "pnm", "jp2")


class Folder(Source):
    """Images in `root`/CLASS/..., at any depth, in ImageFolder's order. Labels are the numbers of the class names in sorted order.

    root: the folder; ~ stands for the home directory. Hidden files and folders are left out, links are followed.
    extensions: which files are images, without regard to case.
    fetch: the name of a data set to download to `root` where `root` does not exist.
    stand_in: how many images to make instead where that download fails.
    """

    name: ClassVar[str] = "folder"

    root: Annotated[Path, AfterValidator(expanded)]
    extensions: tuple[str, ...] = Field(default=EXTENSIONS, min_length=1)
    fetch: Annotated[str, AfterValidator(datasets.known)] | None = None
    stand_in: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None

    def index(self, progress: Progress = quiet) -> Index:
        place = datasets.present(self.root, self.fetch, self.stand_in, progress)
        root = place.root.resolve()
        saved = cache_dir() / "index" / f"{self._key(root)}.idx"
        index = index_file.open_saved(saved)
        if index is None or not _unchanged(root, index):
            started = time.time()
            index = self._scan(root, progress)
            index_file.keep(index, saved, max(index.extra["times"].values()), started)
        return replace(index, note=place.note)

    def absent(self) -> str:
        return datasets.absent(self.root, self.fetch, self.stand_in)

    def _key(self, root: Path) -> str:
        return hashlib.blake2b(os.fsencode("\0".join([str(root), *self.extensions])), digest_size=16).hexdigest()

    def _scan(self, root: Path, progress: Progress) -> Index:
        try:
            return self._read(root, progress)
        except OSError as e:
            raise DataError(f"{e.filename or root}: cannot be read while the folder is scanned: {e.strerror or e}") from e

    def _read(self, root: Path, progress: Progress) -> Index:
        suffixes = tuple(f".{e.lower().lstrip('.')}" for e in self.extensions)
        paths: list[str] = []
        labels: list[int] = []
        here = os.stat(root)
        times = {"": _changed(here)}
        with os.scandir(root) as entries:
            classes = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
        for number, name in enumerate(classes):
            tree = _Tree(root, suffixes, times)
            tree.read(name, (_identity(here),))
            found = [f"{folder}/{image}" for folder in sorted(tree.images) for image in sorted(tree.images[folder])]
            if not found:
                raise DataError(f"{root / name}: no image ({', '.join(suffixes)}): remove the empty class folder, or set data.extensions")
            paths += found
            labels += [number] * len(found)
            progress("scanning", len(paths), None)
        if not classes:
            raise DataError(f"{root}: no class folders: a folder source reads ROOT/CLASS/image.jpg, so put the images into a folder for each class")
        return build(str(root), paths, np.array(labels, np.int64), classes, {"times": times})


class _Tree:
    """The images under a folder: file names by folder, both in `os.scandir`'s order; `times` gains when each folder was last changed."""

    def __init__(self, root: Path, suffixes: tuple[str, ...], times: dict[str, int]) -> None:
        self._root, self._suffixes, self._times = root, suffixes, times
        self.images: dict[str, list[str]] = {}

    def read(self, folder: str, above: tuple[tuple[int, int], ...]) -> None:
        """Read `folder`, relative to the root. above: the identities of the folders that it lies in."""
        here = os.stat(self._root / folder)
        if _identity(here) in above:
            raise DataError(f"{self._root / folder}: a link to a folder that it lies in, so the scan would never end: remove the link")
        self._times[folder] = _changed(here)
        images = self.images[folder] = []
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    self.read(f"{folder}/{entry.name}", (*above, _identity(here)))
                elif entry.name.lower().endswith(self._suffixes) and (entry.is_file() or entry.is_symlink()):
                    images.append(entry.name)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _changed(status: os.stat_result) -> int:
    """When a folder last gained, lost or renamed an entry, ns. The time of its inode too: tar, rsync and touch set back only the other one."""
    return max(status.st_mtime_ns, status.st_ctime_ns)


def _unchanged(root: Path, index: Index) -> bool:
    """Whether the index is of this root, and no folder gained, lost or renamed an entry since the scan."""
    times = index.extra.get("times")
    if index.root != str(root) or not isinstance(times, dict) or "" not in times:
        return False
    try:
        return all(_changed(os.stat(root / folder)) == then for folder, then in times.items())
    except OSError:
        return False
