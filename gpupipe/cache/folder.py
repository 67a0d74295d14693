"""The cache's folder: what is in it, what it takes on disk, and what there must not be in it any
more.

The folder is its own ledger: published shards have their sizes in the manifest, shards that are
being written have reserved theirs in a claim, and the few other files are looked at. So whatever
dies at whatever moment leaves nothing that is not counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpupipe.cache.commit_log import Manifest
from gpupipe.cache.disk import BLOCK, on_disk, replaced
from gpupipe.cache.locks import Claim, abandoned, content, exclusive
from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.errors import DataError, shown

_CLAIMS, _PINS, _SAMPLERS, _RUNS = "claims", "pins", "samplers", "runs"
_OWNED = (_CLAIMS, _PINS, _SAMPLERS, _RUNS)
_FOLDERS = (*_OWNED, "shards", "tables", "tmp", "listing")
_TABLE_SHARE = 1 / 16
"""Of max_bytes: what tables of evicted shards may take."""


class CacheFolder:
    """A cache's folder. What is said to need the lock is called inside `with folder.lock():`
    alone.
    """

    def __init__(self, options: CacheOptions) -> None:
        """Open the folder at options.dir; see `prepared` for one that may not be there yet."""
        self.options = options
        self.dir = options.dir.absolute()
        self.manifest = Manifest(self.dir / "manifest.jsonl")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Nobody else changes anything meanwhile; the manifest is as it stands."""
        if not self.dir.is_dir():
            raise DataError(
                f"{self.dir}: the cache's folder is gone: load() again, and it is filled anew"
            )
        with exclusive(self.dir / "lock"):
            self.manifest.refresh()
            yield

    # --- where what is

    def shard(self, name: str) -> Path:
        return self.dir / "shards" / f"{name}.tar"

    def table(self, name: str) -> Path:
        return self.dir / "tables" / f"{name}.npy"

    def claim(self, kind: str, name: str, said: dict[str, Any]) -> Claim:
        """A file of the folder `kind` that is there as long as this process. Needs the lock."""
        return Claim(self.dir / kind / name, said)

    def claims(self, kind: str = _CLAIMS) -> dict[str, dict[str, Any]]:
        """What the claims of a kind say, by name."""
        return {
            name: content(self.dir / kind / name) for name in sorted(os.listdir(self.dir / kind))
        }

    def there(self) -> set[str]:
        """The names of the shards whose tar and table are in the folder."""
        return _stems(self.dir / "shards") & _stems(self.dir / "tables")

    def pinned(self) -> set[str]:
        """The names of the shards of all generations that epochs train on.

        Needs the lock, behind `tidy`.
        """
        generations = {int(pin.get("generation", 0)) for pin in self.claims(_PINS).values()}
        return {name for g in generations for name in self.manifest.alive(g)}

    def missing(self) -> list[str]:
        """Shards that ought to be there and are not: of the newest generation or a pinned one,
        neither in the folder nor under way. Needs the lock.
        """
        wanted = self.pinned() | self.manifest.alive().keys()
        return sorted(wanted - self.there() - self.claims().keys())

    # --- what it takes

    def usage(self) -> int:
        """Bytes on disk, with all that is reserved. Needs the lock."""
        known = self.manifest.known
        shards = sum(
            on_disk(known[name].bytes) for name in _stems(self.dir / "shards") if name in known
        )
        tables = sum(
            on_disk(known[name].table_bytes)
            for name in _stems(self.dir / "tables")
            if name in known
        )
        return shards + tables + self._reserved() + self._others()

    def _reserved(self) -> int:
        return sum(int(claim.get("reserved", 0)) for claim in self.claims().values())

    def _others(self) -> int:
        total = BLOCK * (len(_FOLDERS) + 1)
        for folder in (self.dir, *(self.dir / name for name in (*_OWNED, "listing"))):
            with os.scandir(folder) as entries:
                total += sum(on_disk(_size(e)) for e in entries)
        return total

    # --- what must go

    def tidy(self) -> None:
        """Remove what the dead have left, shards that nobody needs any more, and the oldest tables
        beyond their share. Needs the lock.
        """
        for kind in _OWNED[1:]:
            for path in _files(self.dir / kind):
                if path.suffix != ".json" and abandoned(path):
                    path.unlink(missing_ok=True)
        for path in _files(self.dir / _CLAIMS):
            if abandoned(path):
                for left in (self.dir / "tmp").glob(f"{path.name}.*"):
                    left.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        claimed = self.claims().keys()
        self._sweep(self.dir / "shards", self.pinned() | self.manifest.alive().keys() | claimed)
        self._sweep(self.dir / "tables", self.manifest.known.keys() | claimed)
        self.prune(self.options.max_bytes * _TABLE_SHARE)

    def _sweep(self, folder: Path, keep: set[str]) -> None:
        for name in _stems(folder) - keep:
            for path in folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)

    def prune(self, room: float) -> None:
        """Remove the oldest tables of shards that were evicted, but for `room` bytes: a resume from
        before then says that it cannot be. Needs the lock.
        """
        spare = (
            _stems(self.dir / "tables")
            - self.pinned()
            - self.manifest.alive().keys()
            - self.claims().keys()
        )
        for name in sorted(spare, reverse=True):
            room -= on_disk(self.manifest.known[name].table_bytes)
            if room < 0:
                self.table(name).unlink(missing_ok=True)


def prepared(options: CacheOptions, dataset: DataSet) -> CacheFolder:
    """The folder, made where it is not there.

    Raises DataError where it holds other things, another data set, or cannot be written.
    """
    folder = CacheFolder(options)
    try:
        _make(folder)
        with folder.lock():
            _check_identity(folder, dataset)
    except OSError as e:
        raise DataError(
            f"{e.filename or folder.dir}: the cache's folder cannot be used: "
            f"{e.strerror or e}: set data.cache.dir to one that can"
        ) from e
    return folder


def _make(folder: CacheFolder) -> None:
    if folder.dir.is_dir() and not (folder.dir / "lock").exists() and any(folder.dir.iterdir()):
        raise DataError(
            f"{folder.dir}: holds other files, and is no cache: set data.cache.dir to a new folder"
        )
    folder.dir.mkdir(parents=True, exist_ok=True)
    (folder.dir / "lock").touch()
    for name in _FOLDERS:
        (folder.dir / name).mkdir(exist_ok=True)


def _check_identity(folder: CacheFolder, dataset: DataSet) -> None:
    path, ours = folder.dir / "dataset.json", dataset.identity
    if path.exists():
        theirs = content(path)
        for key, value in ours.items():
            if theirs.get(key) != value:
                there = f"data.{key} {shown(theirs.get(key))} there, {shown(value)} here"
                raise DataError(
                    f"{folder.dir}: the cache of another data set: {there}: set "
                    "data.cache.dir to another folder, or delete this one"
                )
        return
    text = json.dumps(ours)
    replaced(path, lambda making: making.write_text(text))


def _files(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder))]


def _stems(folder: Path) -> set[str]:
    return {
        name for name in (file.partition(".")[0] for file in os.listdir(folder)) if name.isdecimal()
    }


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
