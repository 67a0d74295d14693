"""Reports the state of a cache and repairs damaged shards, for the command `gpupipe cache`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpupipe.cache import listing, shard_files, stored_table
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.evict import Epoch, read_epochs
from gpupipe.cache.publishing import ShardPublisher
from gpupipe.cache.shared_files import CachedShard
from gpupipe.errors import DataError
from gpupipe.runtime.files import write_atomically


@dataclass(frozen=True)
class Status:
    """The state of a cache at one moment.

    Attributes:
        dir: The cache folder.
        bytes: Bytes on disk, including reserved bytes.
        max_bytes: The maximum size of the folder in bytes.
        generation: The number of the cache's newest state: how many lines its commit log has.
        shards: Number of shards in this state.
        samples: Number of samples in these shards.
        evicted: Number of shards evicted so far.
        rows: Number of rows of the data set: samples, or shards if the store has those. None if the
            data set is not listed yet.
        has_stored_shards: Whether the store has shards.
        unfetched: Bytes of the files of these shards that are not needed, and were not fetched.
        epochs: Number of epochs that began.
        requested: Number of samples in all these epochs together.
        hit_rate: Share of `requested` for which no new sample had to be fetched:
            1 - (samples published up to the generation of the newest epoch) / requested. None
            if `requested` is 0.
        fetch_rate: Bytes per second over all download workers in the last seconds.
        pinned: Generations that epochs train on.
        workers: The last report of each running download worker.
    """

    dir: str
    bytes: int
    max_bytes: int
    generation: int
    shards: int
    samples: int
    evicted: int
    rows: int | None
    has_stored_shards: bool
    unfetched: int
    epochs: int
    requested: int
    hit_rate: float | None
    fetch_rate: float
    pinned: list[int]
    workers: list[dict[str, Any]]


def read_status(folder: CacheFolder) -> Status:
    """Return the status of a cache."""
    rows = len(listing.load(folder)) if listing.is_listed(folder) else None
    with folder.lock():
        folder.remove_leftovers()
        used, recorded = folder.count_bytes(), read_epochs(folder)
        workers = list(folder.read_claims("workers").values())
        pins = folder.read_claims("pins").values()
    log = folder.commit_log
    live = log.live_shards()
    return Status(
        str(folder.dir),
        used,
        int(folder.options.max_bytes),
        log.generation,
        len(live),
        sum(s.samples for s in live.values()),
        len(log.published) - len(live),
        rows,
        folder.has_stored_shards,
        sum(s.unfetched for s in live.values()),
        len(recorded),
        sum(e.samples for e in recorded),
        _compute_hit_rate(folder, recorded),
        sum(w.get("rate", 0.0) for w in workers),
        sorted({int(pin.get("generation", 0)) for pin in pins}),
        workers,
    )


def _compute_hit_rate(folder: CacheFolder, recorded: list[Epoch]) -> float | None:
    requested = sum(e.samples for e in recorded)
    if not requested:
        return None
    newest = max(e.generation for e in recorded)
    published_at = folder.commit_log.publication_generations()
    fetched = sum(
        folder.commit_log.published[name].samples
        for name, generation in published_at.items()
        if generation <= newest
    )
    return max(0.0, 1 - fetched / requested)


def remove_damaged_shards(
    folder: CacheFolder, rows: int, progress: Callable[[int, int], None]
) -> dict[str, str]:
    """Check every shard, and remove the damaged ones.

    Args:
        folder: The cache.
        rows: Number of rows of the data set.
        progress: Called with the number of shards checked so far, and the number of all shards.

    Returns:
        Maps the name of each removed shard to what is wrong with it.
    """
    with folder.lock():
        folder.remove_leftovers()
        wanted = [folder.commit_log.published[name] for name in sorted(folder.list_needed_shards())]
    problems = {}
    for number, shard in enumerate(wanted, 1):
        problem = (
            _check_stored(folder, shard)
            if folder.has_stored_shards
            else _check_shard(folder, shard, rows)
        )
        if problem and _remove_shard(folder, shard):
            problems[shard.name] = problem
        progress(number, len(wanted))
    return problems


def remove_if_damaged(folder: CacheFolder, shard: CachedShard) -> bool:
    """Remove a shard of the store if it is damaged, so that it comes again; return whether."""
    if not _check_stored(folder, shard):
        return False
    _remove_shard(folder, shard)
    return True


def fetch_missing_shards(folder: CacheFolder, filler: ShardPublisher) -> dict[str, str]:
    """Fetch again the shards whose files are missing from the folder.

    A shard that cannot be fetched is evicted. Its samples can then be fetched into other shards.

    Args:
        folder: The cache.
        filler: Fetches the shards.

    Returns:
        Maps the name of each shard that could not be fetched again to the reason.
    """
    lost, outcome = filler.statistics.lost, ""
    while True:
        with folder.lock():
            missing = set(folder.list_missing_shards()) - lost.keys()
        if not missing or outcome not in ("", "published", "failed"):
            return lost | dict.fromkeys(missing, "there is no room")
        outcome = filler.publish_shard(fresh=False)


def _check_shard(folder: CacheFolder, shard: CachedShard, rows: int) -> str:
    """Return what is wrong with a shard; "" if it is intact.

    If only the table is damaged and can be rebuilt from the tar file, rebuild it and return "".
    """
    try:
        if shard_files.hash_file(folder.shard_path(shard.name)) != shard.hash:
            return "its checksum is another than when it was published"
        table = shard_files.scan_tar(folder.shard_path(shard.name), rows)
    except OSError as e:
        return f"cannot be read: {e.strerror or e}"
    except DataError as e:
        return str(e)
    if _table_is_right(folder, shard):
        return ""
    try:  # Write the table that was read from the tar file in place of the damaged one.
        with folder.lock(), write_atomically(folder.table_path(shard.name)) as temporary:
            if shard_files.save_table(table, temporary) != shard.table_hash:
                raise DataError("its table is damaged, and does not follow from it")
    except DataError as e:
        return str(e)
    return ""


def _check_stored(folder: CacheFolder, shard: CachedShard) -> str:
    """Return what is wrong with a shard of the store; "" if it is intact."""
    try:
        if stored_table.hash_files(*folder.list_shard_paths(shard.name)) != shard.hash:
            return "its checksum is another than when it was published"
        if stored_table.hash_files(folder.table_path(shard.name)) != shard.table_hash:
            return "its table is damaged"
    except OSError as e:
        return f"cannot be read: {e.strerror or e}"
    return ""


def _table_is_right(folder: CacheFolder, shard: CachedShard) -> bool:
    try:
        shard_files.load_table(folder.table_path(shard.name), shard.table_hash)
    except DataError:
        return False
    return True


def _remove_shard(folder: CacheFolder, shard: CachedShard) -> bool:
    """Remove a damaged shard's file; return False if the shard was evicted meanwhile.

    If the table is damaged too, the shard's samples are unknown. The shard is then evicted.
    """
    with folder.lock():
        if shard.name not in folder.list_needed_shards():
            return False
        for path in folder.list_shard_paths(shard.name):
            path.unlink(missing_ok=True)
        if folder.has_stored_shards:  # the table is made again with the shard
            folder.table_path(shard.name).unlink(missing_ok=True)
        elif not _table_is_right(folder, shard):
            folder.table_path(shard.name).unlink(missing_ok=True)
            folder.commit_log.evict([shard.name], "damaged, with its table")
    return True
