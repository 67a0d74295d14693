"""What lies in a cache, and an epoch that used it."""

from pathlib import Path

from gpupipe.cache import evict, shard_files
from gpupipe.cache.cache_folder import CacheFolder


def disk_size(folder: Path) -> int:
    """What a folder takes, as du counts."""
    total = 0
    for path in (folder, *folder.rglob("*")):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:  # it went meanwhile
            continue
    return total


def rows_of(folder: CacheFolder) -> list[int]:
    folder.commit_log.refresh()
    return [
        int(row)
        for name, shard in folder.commit_log.live_shards().items()
        for row in shard_files.load_table(folder.table_path(name), shard.table_hash)[0]
    ]


def began(folder: CacheFolder) -> None:
    """An epoch that has all that there is, and is over."""
    with folder.lock():
        evict.record_epoch(
            folder,
            folder.commit_log.generation,
            0,
            sum(s.samples for s in folder.commit_log.live_shards().values()),
        )
