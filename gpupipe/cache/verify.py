"""Finds shards that are not what they were when they were published.

They are removed at once, and fetched again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpupipe.cache import shard_files
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.disk import replaced
from gpupipe.cache.fill import Filler
from gpupipe.cache.folder import CacheFolder
from gpupipe.errors import DataError


def damaged(folder: CacheFolder, rows: int, progress: Callable[[int, int], None]) -> dict[str, str]:
    """What is wrong with which shards, by name; they are gone from the folder then.

    rows: of the data set. progress: shards that were read, of how many.
    """
    with folder.lock():
        folder.tidy()
        wanted = {
            name: folder.manifest.known[name]
            for name in sorted(folder.pinned() | folder.manifest.alive().keys())
        }
    found = {}
    for number, (name, shard) in enumerate(wanted.items(), 1):
        why = _wrong(folder, shard, rows)
        if why and _removed(folder, shard):
            found[name] = why
        progress(number, len(wanted))
    return found


def mend(folder: CacheFolder, filler: Filler) -> dict[str, str]:
    """Fetch the missing shards again.

    Those that cannot be are evicted, for their samples to be drawn anew: why, by name.
    """
    while _missing(folder) - filler.tally.lost.keys():
        if filler.step(fresh=False) not in ("published", "failed"):
            break
    return filler.tally.lost | dict.fromkeys(
        _missing(folder) - filler.tally.lost.keys(), "there is no room"
    )


def _missing(folder: CacheFolder) -> set[str]:
    with folder.lock():
        return set(folder.missing())


def _wrong(folder: CacheFolder, shard: CachedShard, rows: int) -> str:
    """What is wrong with a shard, or ""."""
    try:
        if shard_files.hash_of(folder.shard(shard.name)) != shard.hash:
            return "its checksum is another than when it was published"
        table = shard_files.scanned(folder.shard(shard.name), rows)
    except OSError as e:
        return f"cannot be read: {e.strerror or e}"
    except DataError as e:
        return str(e)
    return "" if _table_is_right(folder, shard) else _table_again(folder, shard, table)


def _table_is_right(folder: CacheFolder, shard: CachedShard) -> bool:
    try:
        shard_files.open_table(folder.table(shard.name), shard.table_hash)
    except DataError:
        return False
    return True


def _table_again(folder: CacheFolder, shard: CachedShard, table: shard_files.Table) -> str:
    """Make a damaged table again out of its shard."""

    def write(path: Path) -> None:
        if shard_files.save_table(table, path) != shard.table_hash:
            raise DataError("its table is damaged, and does not follow from it")

    try:
        with folder.lock():
            replaced(folder.table(shard.name), write)
    except DataError as e:
        return str(e)
    return ""


def _removed(folder: CacheFolder, shard: CachedShard) -> bool:
    """Remove a damaged shard, unless it was evicted meanwhile.

    Where its table is damaged too, what it held is not known any more: it is evicted.
    """
    with folder.lock():
        if shard.name not in folder.pinned() | folder.manifest.alive().keys():
            return False
        folder.shard(shard.name).unlink(missing_ok=True)
        if not _table_is_right(folder, shard):
            folder.table(shard.name).unlink(missing_ok=True)
            folder.manifest.evict([shard.name], "damaged, with its table")
    return True
