"""Finds damaged shards, removes them, and fetches them again."""

from __future__ import annotations

from collections.abc import Callable

from gpupipe.cache import shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.commit_log import CachedShard
from gpupipe.cache.filling.fill import Filler
from gpupipe.errors import DataError
from gpupipe.runtime.files import write_atomically


def remove_damaged_shards(
    folder: CacheFolder, rows: int, progress: Callable[[int, int], None]
) -> dict[str, str]:
    """Remove the damaged shards, and return what is wrong with each, by name.

    Args:
        folder: The cache.
        rows: Number of rows of the data set.
        progress: Called with (shards read, all shards).
    """
    with folder.lock():
        folder.remove_leftovers()
        wanted = {
            name: folder.commit_log.published[name]
            for name in sorted(folder.list_pinned_shards() | folder.commit_log.live_shards().keys())
        }
    problems = {}
    for number, (name, shard) in enumerate(wanted.items(), 1):
        problem = _check_shard(folder, shard, rows)
        if problem and _remove_shard(folder, shard):
            problems[name] = problem
        progress(number, len(wanted))
    return problems


def fetch_missing_shards(folder: CacheFolder, filler: Filler) -> dict[str, str]:
    """Fetch missing shards again.

    A shard that cannot be fetched is evicted, and its samples will be drawn again.

    Args:
        folder: The cache.
        filler: Fetches the shards.

    Returns:
        Why a shard could not be fetched again, by name.
    """
    while _missing(folder) - filler.statistics.lost.keys():
        if filler.publish_shard(fresh=False) not in ("published", "failed"):
            break
    return filler.statistics.lost | dict.fromkeys(
        _missing(folder) - filler.statistics.lost.keys(), "there is no room"
    )


def _missing(folder: CacheFolder) -> set[str]:
    with folder.lock():
        return set(folder.list_missing_shards())


def _check_shard(folder: CacheFolder, shard: CachedShard, rows: int) -> str:
    """Return what is wrong with a shard, or "". A damaged table is repaired if possible."""
    try:
        if shard_files.hash_file(folder.shard_path(shard.name)) != shard.hash:
            return "its checksum is another than when it was published"
        table = shard_files.scan_tar(folder.shard_path(shard.name), rows)
    except OSError as e:
        return f"cannot be read: {e.strerror or e}"
    except DataError as e:
        return str(e)
    return "" if _table_is_right(folder, shard) else _rebuild_table(folder, shard, table)


def _table_is_right(folder: CacheFolder, shard: CachedShard) -> bool:
    try:
        shard_files.load_table(folder.table_path(shard.name), shard.table_hash)
    except DataError:
        return False
    return True


def _rebuild_table(folder: CacheFolder, shard: CachedShard, table: shard_files.Table) -> str:
    """Rebuild a damaged table from its shard; return what is wrong with it, or ""."""
    try:
        with folder.lock(), write_atomically(folder.table_path(shard.name)) as temporary:
            published = shard_files.as_published(table, shard.table_bytes)
            if shard_files.save_table(published, temporary) != shard.table_hash:
                raise DataError("its table is damaged, and does not follow from it")
    except DataError as e:
        return str(e)
    return ""


def _remove_shard(folder: CacheFolder, shard: CachedShard) -> bool:
    """Remove a damaged shard; return False if it was evicted meanwhile.

    If its table is damaged too, its samples are unknown, and it is evicted.
    """
    with folder.lock():
        if shard.name not in folder.list_pinned_shards() | folder.commit_log.live_shards().keys():
            return False
        folder.shard_path(shard.name).unlink(missing_ok=True)
        if not _table_is_right(folder, shard):
            folder.table_path(shard.name).unlink(missing_ok=True)
            folder.commit_log.evict([shard.name], "damaged, with its table")
    return True
