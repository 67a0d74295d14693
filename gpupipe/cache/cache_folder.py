"""The cache folder: its files, the bytes it takes on disk, and the removal of leftovers.

The bytes in use are computed from the folder alone. The commit log holds the sizes of published
shards, claims hold the bytes reserved for shards that are being written, and other files are
measured. So all bytes are counted even if a process is killed at any moment.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from gpupipe.cache.settings import CacheOptions, DataSet
from gpupipe.cache.shared_files import BLOCK, Claim, CommitLog, disk_size, is_abandoned
from gpupipe.cache.stored_formats import find_format, select_indexed
from gpupipe.errors import DataError, shown
from gpupipe.runtime.file_locks import hold_lock
from gpupipe.runtime.files import TEMPORARY_SUFFIX, read_json_object, write_atomically
from gpupipe.runtime.systems import require_posix

_CLAIMS, _PINS, _WORKERS, _RUNS = "claims", "pins", "workers", "runs"
_CLAIM_KINDS = (_CLAIMS, _PINS, _WORKERS, _RUNS)
_FOLDERS = (*_CLAIM_KINDS, "shards", "tables", "tmp")
_PACKED = (".tar",)
_FORMAT = 2
"""Version of the folder's layout. A folder of another version is refused."""
_TABLE_SHARE = 1 / 16
"""Share of max_bytes that the tables of evicted shards may take."""


class CacheFolder:
    """The folder of a cache: its files and claims, and the bytes that they take on disk.

    Where a method says that the caller must hold the lock, call it inside `with folder.lock():`.

    Args:
        options: The settings; `options.dir` is the folder, which `prepare_folder` creates.

    Attributes:
        options: The settings.
        dir: The absolute path of the folder.
        listing_path: The file with the rows of the data set.
        members_path: The file with the objects of its shards, if each is several objects.
        parts_path: The file with the parts of files that its shards are, if they are parts.
        commit_log: The log of published and evicted shards.
    """

    def __init__(self, options: CacheOptions) -> None:
        require_posix("a cache of remote data")
        self.options = options
        self.dir = options.dir.absolute()
        self.listing_path = self.dir / "listing.idx"
        self.members_path = self.dir / "members.idx"
        self.parts_path = self.dir / "parts.idx"
        self.commit_log = CommitLog(self.dir / "manifest.jsonl")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the cache's lock inside the `with` block; first, read new lines of the commit log.

        Raises:
            DataError: The folder no longer exists, or its commit log is damaged.
        """
        if not self.dir.is_dir():
            raise DataError(
                f"{self.dir}: the cache's folder is gone: load() again, and it is filled again"
            )
        with hold_lock(self.dir / "lock"):
            self.commit_log.refresh()
            yield

    # --- content

    @property
    def has_stored_shards(self) -> bool:
        """Whether the shards are those of the store, in place of packed samples."""
        return bool(self._stored_endings)

    @property
    def shard_endings(self) -> tuple[str, ...]:
        """The endings of the files of a shard; the samples are in the file with the last one."""
        return self._stored_endings or _PACKED

    @cached_property
    def _stored_endings(self) -> tuple[str, ...]:
        return tuple(read_json_object(self.dir / "dataset.json").get("endings", ()))

    def list_shard_paths(self, name: str) -> list[Path]:
        """Return the paths of all files of a shard, except its table."""
        return [self.dir / "shards" / f"{name}{ending}" for ending in self.shard_endings]

    def shard_path(self, name: str) -> Path:
        """Return the path of the file that the samples of a shard are in, such as a tar file."""
        return self.dir / "shards" / f"{name}{self.shard_endings[-1]}"

    def table_path(self, name: str) -> Path:
        """Return the path of a shard's table."""
        return self.dir / "tables" / f"{name}.npy"

    def create_claim(self, kind: str, name: str, content: dict[str, Any]) -> Claim:
        """Create a claim: a file that is valid until this process ends or releases it.

        The caller must hold the lock.

        Args:
            kind: "claims" (shards being written), "pins" (generations that epochs train on),
                "workers" (running download workers) or "runs" (open loaders of training runs).
            name: Name of the claim's file.
            content: Content of the file, which must be JSON.
        """
        return Claim(self.dir / kind / name, content)

    def read_claims(self, kind: str = _CLAIMS) -> dict[str, dict[str, Any]]:
        """Return a dict from the name of each claim of a kind to its content.

        Args:
            kind: "claims" (shards being written), "pins" (generations that epochs train on),
                "workers" (running download workers) or "runs" (open loaders of training runs).
        """
        return {
            name: read_json_object(self.dir / kind / name)
            for name in sorted(os.listdir(self.dir / kind))
        }

    def list_present_shards(self) -> set[str]:
        """Return the names of the shards whose tar and table are both in the folder."""
        shards = _stems(self.dir / "shards", self.shard_endings[-1])
        return shards & _stems(self.dir / "tables")

    def list_pinned_shards(self) -> set[str]:
        """Return the names of the shards in all generations that epochs train on.

        The caller must hold the lock, and have called `remove_leftovers`.
        """
        pins = self.read_claims(_PINS).values()
        selections = {(int(pin.get("generation", 0)), int(pin.get("since", 0))) for pin in pins}
        return {name for one in selections for name in self.commit_log.live_shards(*one)}

    def list_needed_shards(self) -> set[str]:
        """Return the names of the shards in the newest generation or in a pinned one.

        The caller must hold the lock, and have called `remove_leftovers`.
        """
        return self.list_pinned_shards() | self.commit_log.live_shards().keys()

    def list_missing_shards(self) -> list[str]:
        """Return those of `list_needed_shards` that are neither in the folder nor being written.

        The caller must hold the lock.
        """
        return sorted(
            self.list_needed_shards() - self.list_present_shards() - self.read_claims().keys()
        )

    # --- bytes on disk

    def count_bytes(self) -> int:
        """Return the bytes on disk and those that claims reserve. The caller must hold the lock."""
        log = self.commit_log.published
        shards, tables = _stems(self.dir / "shards"), _stems(self.dir / "tables")
        total = BLOCK * (len(_FOLDERS) + 1)
        total += sum(disk_size(log[name].bytes) for name in shards & log.keys())
        total += sum(disk_size(log[name].table_bytes) for name in tables & log.keys())
        total += sum(int(claim.get("reserved", 0)) for claim in self.read_claims().values())
        for folder in (self.dir, *(self.dir / name for name in _CLAIM_KINDS)):
            with os.scandir(folder) as entries:
                total += sum(disk_size(_size(e)) for e in entries)
        return total

    # --- removal

    def remove_leftovers(self) -> None:
        """Remove files that are no longer needed. The caller must hold the lock.

        These are claims and temporary files of dead processes, and shards that are neither in the
        newest nor in a pinned generation. If the tables of evicted shards take over 1/16 of
        max_bytes, the oldest of these tables go too. Creates the folder `shards` again if it is
        missing.
        """
        (self.dir / "shards").mkdir(exist_ok=True)
        for path in (path for kind in _CLAIM_KINDS for path in (self.dir / kind).iterdir()):
            if path.suffix != ".json" and is_abandoned(path):
                path.unlink(missing_ok=True)
        # Only the holder of the lock writes here, so a temporary file is one of a killed process.
        for folder in (self.dir, self.dir / "tables", self.dir / _RUNS):
            for path in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                path.unlink(missing_ok=True)
        claimed = set(self.read_claims())
        self._sweep(self.dir / "tmp", claimed)
        self._sweep(self.dir / "shards", self.list_needed_shards() | claimed)
        self._sweep(self.dir / "tables", self.commit_log.published.keys() | claimed)
        self.prune_tables(self.options.max_bytes * _TABLE_SHARE)

    def _sweep(self, folder: Path, keep: set[str]) -> None:
        for name in _stems(folder) - keep:
            for path in folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)

    def prune_tables(self, room: float) -> None:
        """Remove the oldest tables of evicted shards until the rest takes at most `room` bytes.

        The caller must hold the lock. If a generation needs a removed table, a resume from this
        generation raises StateError.
        """
        needed = self.list_needed_shards() | self.read_claims().keys()
        spare = _stems(self.dir / "tables") - needed
        for name in sorted(spare, key=lambda name: self.commit_log.published[name].time)[::-1]:
            room -= disk_size(self.commit_log.published[name].table_bytes)
            if room < 0:
                self.table_path(name).unlink(missing_ok=True)


def prepare_folder(options: CacheOptions, dataset: DataSet) -> CacheFolder:
    """Return the cache folder; create it if it does not exist.

    Args:
        options: The settings; `options.dir` is the folder.
        dataset: The data set that the cache is for.

    Raises:
        DataError: The folder holds other files or the cache of another data set, or cannot be
            written.
    """
    folder = CacheFolder(options)
    try:
        _create_folders(folder)
        with folder.lock():
            _check_identity(folder, dataset)
    except OSError as e:
        raise DataError(
            f"{e.filename or folder.dir}: the cache's folder cannot be used: "
            f"{e.strerror or e}: set data.cache.dir to one that can"
        ) from e
    return folder


def _create_folders(folder: CacheFolder) -> None:
    if folder.dir.is_dir() and not (folder.dir / "lock").exists() and any(folder.dir.iterdir()):
        raise DataError(
            f"{folder.dir}: holds other files, and is no cache: set data.cache.dir to a new folder"
        )
    folder.dir.mkdir(parents=True, exist_ok=True)
    (folder.dir / "lock").touch()
    for name in _FOLDERS:
        (folder.dir / name).mkdir(exist_ok=True)


def _check_identity(folder: CacheFolder, dataset: DataSet) -> None:
    path, ours = folder.dir / "dataset.json", dataset.identity | {"format": _FORMAT}
    if dataset.shards is not None:
        found = find_format(dataset)
        ours |= {
            "source": found.source,
            "endings": list(found.endings),
            "options": select_indexed(found, ours["options"]),
        }
        if found.is_sized:
            ours["cache.shard_size"] = int(folder.options.shard_size)
    if path.exists():
        theirs = read_json_object(path)
        if theirs.get("format") != _FORMAT:
            raise DataError(
                f"{folder.dir}: the cache of another version of gpupipe: set data.cache.dir to "
                "another folder, or delete this one"
            )
        for key, value in ours.items():
            if theirs.get(key) != value:
                raise DataError(
                    f"{folder.dir}: the cache of another data set: data.{key} "
                    f"{shown(theirs.get(key))} there, {shown(value)} here: set data.cache.dir to "
                    "another folder, or delete this one"
                )
        return
    with write_atomically(path, is_durable=True) as temporary:
        temporary.write_text(json.dumps(ours))


def _stems(folder: Path, ending: str = "") -> set[str]:
    try:
        files = [file for file in os.listdir(folder) if file.endswith(ending)]
    except FileNotFoundError:  # somebody removed it
        return set()
    return {name for name in (file.partition(".")[0] for file in files) if name.isdecimal()}


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
