"""Finds or creates the cache file of a job; lists and empties the caches of this machine.

Refuses a cache that does not fit into memory or onto the disk.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ByteSize

from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.decoded_cache.cache_file import create_file, is_in_use, lock_path, read_header
from gpupipe.decoded_cache.layout import (
    ALIGNMENT,
    COUNTERS_OFFSET,
    COUNTERS_SIZE,
    SLOT_SIZE,
    SLOTS_OFFSET,
    CacheHeader,
    Counters,
    DamagedCacheError,
)
from gpupipe.errors import DataError
from gpupipe.runtime.file_locks import hold_lock
from gpupipe.runtime.files import cache_dir, explain_foreign
from gpupipe.runtime.memory import read_meminfo

SUFFIX = ".decoded"
_VARIABLE = "GPUPIPE_SHM"
_MIN_RECORD_BYTES = 1024
_MAX_SLOTS = 1 / 16
"""The maximum share of a file that its slots take."""
_LONGEST_TEXT = 500


def cache_folder(where: str) -> Path:
    """Return the folder of the decoded caches, which may not exist yet.

    `where` is "memory" or "disk".
    """
    if where == "disk":
        return cache_dir() / "decoded"
    return _find_shared_memory() / f"gpupipe-decoded-{os.getuid()}"


def prepare_file(options: DecodedCacheOptions, job: dict[str, Any], samples: int) -> Path:
    """Return the cache file of a job; create it if there is none, or if it is damaged.

    Args:
        options: The settings.
        job: The values that identify the job, as `describe_job` returns them.
        samples: The number of records in a complete cache: one per sample and field.

    Raises:
        DataError: The file does not fit into memory or onto the disk, cannot be written, or a
            running process uses the file with another size.
    """
    key = hashlib.blake2b(json.dumps(job, sort_keys=True).encode(), digest_size=16).digest()
    folder = cache_folder(options.where)
    path = folder / f"{key.hex()}{SUFFIX}"
    try:
        _create_folder(folder)
        with hold_lock(lock_path(path)):
            if not _fits_options(path, options):
                path.unlink(missing_ok=True)
                _refuse_without_room(folder, options)
                create_file(path, _make_header(key, options, samples, job))
    except OSError as e:
        raise DataError(f"data.cache_decoded: {folder} cannot be written: {e}") from e
    return path


def free_shared_memory() -> int:
    """Return the number of bytes that a new cache in memory could take."""
    folder = _find_shared_memory()
    return _measure_free(folder, "memory")[0] if folder.is_dir() else 0


def _measure_free(folder: Path, where: str) -> tuple[int, bool]:
    """Return how many bytes a new file in `folder` can take, and whether memory limits them."""
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    available = read_meminfo().get("MemAvailable", free) if where == "memory" else free
    return min(free, available), available < free


@contextmanager
def own_shared_memory() -> Iterator[None]:
    """Put in-memory caches into a temporary folder, which is removed at the end of the block.

    This holds for this process, and for the child processes that it starts inside the block.
    Existing in-memory caches are not used inside the block.
    """
    if not _find_shared_memory().is_dir():
        yield
        return
    before = os.environ.get(_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="gpupipe-tune-", dir=_find_shared_memory()) as folder:
        os.environ[_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE)
            if before is not None:
                os.environ[_VARIABLE] = before


def list_files(where: str) -> list[Path]:
    """Return the paths of the cache files, sorted by name.

    Args:
        where: "memory" for the files in shared memory, "disk" for those in the cache folder.
    """
    folder = cache_folder(where)
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def _make_header(
    key: bytes, options: DecodedCacheOptions, samples: int, job: dict[str, Any]
) -> CacheHeader:
    size = int(options.max_bytes)
    max_slots = min(size // _MIN_RECORD_BYTES, int(size * _MAX_SLOTS / SLOT_SIZE))
    slots = max(64, min(2 * samples, max_slots))
    data_offset = -(-(SLOTS_OFFSET + slots * SLOT_SIZE) // ALIGNMENT) * ALIGNMENT
    steps = {name: [step for step, _ in steps] for name, steps in job["steps"].items()}
    about = {
        "root": job["root"][-_LONGEST_TEXT:],
        "engine": job["engine"],
        "steps": json.dumps(steps)[:_LONGEST_TEXT],
    }
    return CacheHeader(key, size, slots, data_offset, about)


def _create_folder(folder: Path) -> None:
    """Create a cache folder that only this user may open.

    Raises:
        OSError: The folder cannot be created.
        DataError: There is no shared memory, or the folder is a link, or others may write to it.
    """
    if folder.parent == _find_shared_memory() and not folder.parent.is_dir():
        raise DataError(
            f"data.cache_decoded.where is memory, but there is no folder {folder.parent}: write "
            "where: disk"
        )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if wrong := explain_foreign(folder.lstat()):
        raise DataError(
            f"data.cache_decoded: {folder} {wrong}: remove it (or, if it is yours, run "
            f"'chmod 700 {folder}')"
        )


def _fits_options(path: Path, options: DecodedCacheOptions) -> bool:
    """Return whether the cache file exists, is not damaged, and has the configured size.

    Raises:
        OSError: The file cannot be read.
        DataError: The file has another size, and a running process uses it.
    """
    try:
        header = read_header(path)
    except (FileNotFoundError, DamagedCacheError):
        return False
    if header.size == options.max_bytes:
        return True
    if is_in_use(path):
        raise DataError(
            f"data.cache_decoded.max_bytes is {_show(options.max_bytes)}, but a running process "
            f"uses this cache with {_show(header.size)} ({path}): write that, or wait for its end"
        )
    return False


def _refuse_without_room(folder: Path, options: DecodedCacheOptions) -> None:
    """Raise DataError if too little space is free for a new file.

    Space that other caches may still fill does not count as free.
    """
    free, is_memory_limit = _measure_free(folder, options.where)
    files = (path.stat() for path in list_files(options.where))
    promised = sum(max(0, file.st_size - 512 * file.st_blocks) for file in files)
    if free - promised < options.max_bytes:
        where = "the memory of this machine" if is_memory_limit else folder.parent
        others = f", of which other decoded caches may still fill {_show(promised)}"
        on_disk = ", or write where: disk" if options.where == "memory" else ""
        raise DataError(
            f"data.cache_decoded.max_bytes is {_show(options.max_bytes)}, but {where} has "
            f"{_show(free)} free{others if promised else ''}: make it smaller, or empty other "
            f"caches with 'gpupipe cache empty'{on_disk}"
        )


def _find_shared_memory() -> Path:
    """Return the folder of files in shared memory: $GPUPIPE_SHM, by default /dev/shm."""
    return Path(os.environ.get(_VARIABLE) or "/dev/shm")


def _show(count: int) -> str:
    return ByteSize(count).human_readable(decimal=True)


PLACES = ("memory", "disk")


@dataclass(frozen=True)
class CacheState:
    """The state of one cache file.

    Attributes:
        path: The file.
        where: "memory" or "disk".
        max_bytes: The maximum size of the file in bytes.
        used_bytes: The bytes that the file takes on disk or in memory now.
        images: The number of images that the file keeps.
        share: The share of all images that the file keeps, 0 to 1; None while the file
            has too few records to estimate it.
        in_use: Whether a running process has the file open.
        root: The folder of the data.
        engine: The engine that decoded the images.
        steps: The steps whose output is kept, by field, as JSON.
        damaged: What is damaged in the file; "" if nothing. A job replaces a damaged file.
    """

    path: str
    where: str
    max_bytes: int
    used_bytes: int
    images: int
    share: float | None
    in_use: bool
    root: str
    engine: str
    steps: str
    damaged: str = ""


def list_caches(places: Sequence[str] = PLACES) -> list[CacheState]:
    """Return the states of this user's decoded caches in `places`: "memory", "disk" or both."""
    states = []
    for where in places:
        for path in list_files(where):
            with suppress(FileNotFoundError):  # another process may empty them now
                states.append(_read_state(path, where))
    return states


def empty_caches(places: Sequence[str] = PLACES) -> list[CacheState]:
    """Remove the decoded caches of this user, and return their states before the removal.

    A process that has a cache open continues to use it. The bytes of that cache become free when
    the process ends.
    """
    states = list_caches(places)
    for state in states:
        path = Path(state.path)
        with hold_lock(lock_path(path)):
            path.unlink(missing_ok=True)
    return states


def _read_state(path: Path, where: str) -> CacheState:
    used, in_use = path.stat().st_blocks * 512, is_in_use(path)
    try:
        header = read_header(path)
        with path.open("rb") as f:
            f.seek(COUNTERS_OFFSET)
            counters = Counters.unpack(f.read(COUNTERS_SIZE))
    except DamagedCacheError as e:
        size = path.stat().st_size
        return CacheState(str(path), where, size, used, 0, None, in_use, "", "", "", str(e))
    share = counters.share if counters.share >= 0 else None
    return CacheState(
        str(path), where, header.size, used, counters.records, share, in_use, **header.about
    )
