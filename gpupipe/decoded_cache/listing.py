"""What decoded caches this machine has, and how to empty them: for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpupipe.decoded_cache.layout import COUNTERS_OFFSET, COUNTERS_SIZE, Counters, DamagedCache
from gpupipe.decoded_cache.location import list_files
from gpupipe.decoded_cache.record_file import is_in_use, lock_path, read_header
from gpupipe.runtime.files import hold_lock

PLACES = ("memory", "disk")


@dataclass(frozen=True)
class CacheState:
    """A cache file.

    Attributes:
        path: The file.
        where: "memory" or "disk".
        max_bytes: The most that it may take.
        used_bytes: What it takes now.
        images: How many images it keeps.
        share: The share of all images that it keeps, 0 to 1; None if that is not decided yet.
        in_use: Whether a running process has it open.
        root: The folder of the data.
        engine: The engine that made the pixels.
        steps: The steps whose result is kept, by field, as JSON.
        damaged: Why it will be replaced; "" if it is sound.
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
    """Return the decoded caches of this user."""
    states = []
    for where in places:
        for path in list_files(where):
            with suppress(FileNotFoundError):  # another process may empty them now
                states.append(_read_state(path, where))
    return states


def empty_caches(places: Sequence[str] = PLACES) -> list[CacheState]:
    """Remove the decoded caches of this user, and return what they were.

    A process that has one open goes on with it. Its memory is free when that process ends.
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
    except DamagedCache as e:
        size = path.stat().st_size
        return CacheState(str(path), where, size, used, 0, None, in_use, "", "", "", str(e))
    share = counters.share if counters.share >= 0 else None
    return CacheState(
        str(path), where, header.size, used, counters.records, share, in_use, **header.about
    )
