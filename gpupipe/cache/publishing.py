"""The work of a download worker: claim a shard, make its files, and publish it.

ShardPublisher is the part that all shards have in common. fill.py packs samples into shards, and
stored_fill.py fetches shards that the store has.
"""

import shutil
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpupipe.cache import evict, listing
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import FetchStatistics
from gpupipe.cache.rate_limit import RateLimit
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shared_files import DISK_FULL, CachedShard, Claim
from gpupipe.cache.store import Store

FillOutcome = Literal["published", "complete", "no room", "disk full", "failed", "skipped"]
_CHANGED = "its samples are others in the store than when it was made"


@dataclass
class ShardJob:
    """A shard to make.

    Attributes:
        name: Its name.
        claim: The claim that reserves bytes for it.
        reserved: How many.
        rows: The rows of the listing that it is made of.
        tar: The path at which to write its file, the first one if there are several.
        table: The path at which to write its table.
        before: Its record in the commit log if it is fetched again.
    """

    name: str
    claim: Claim
    reserved: int
    rows: list[int]
    tar: Path
    table: Path
    before: CachedShard | None = None


class ShardPublisher(ABC):
    """Fills a cache from a store, one shard at a time.

    Args:
        folder: The cache, with the listing of the data set.
        dataset: The data set.
        store: The store that has the files; by default it is opened with the cache's settings.

    Attributes:
        statistics: Counts of fetched bytes and samples, and the failures.
    """

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        self._folder, self._listing, options = folder, listing.load(folder), folder.options
        self._store = store or Store(dataset, options.retries, options.timeout)
        self._rate_limit = RateLimit(folder.dir / "rate", options.rate_limit)
        self.statistics = FetchStatistics()

    @abstractmethod
    def _claim_missing(self, name: str) -> ShardJob | FillOutcome:
        """Claim a published shard whose file is gone."""

    @abstractmethod
    def _claim_new(self) -> ShardJob | FillOutcome:
        """Claim a shard of samples that are not cached."""

    @abstractmethod
    def _write(self, job: ShardJob) -> CachedShard | FillOutcome:
        """Write the files of a shard, and sync them to disk. Return its record, or why not."""

    def publish_shard(self, fresh: bool = True) -> FillOutcome:
        """Fetch and publish one shard: one whose files are missing, else a new one if `fresh`.

        Args:
            fresh: Whether to draw new samples if no published shard is missing.

        Returns:
            "published", or why nothing was published: "complete" if every sample is cached, "no
            room" if the cache is full, "disk full", "failed" if samples could not be fetched, or
            "skipped" if a shard could not, and others are left.
        """
        try:
            job = self._claim_job(fresh)
            return job if isinstance(job, str) else self._make_shard(job)
        except OSError as e:
            if e.errno not in DISK_FULL:
                raise
            return "disk full"

    # --- claiming a shard

    def _claim_job(self, fresh: bool) -> ShardJob | FillOutcome:
        """Claim a missing shard, else a new one if `fresh`; or return why nothing is claimed."""
        folder = self._folder
        with folder.lock():
            folder.remove_leftovers()
            for name in folder.list_missing_shards():
                if name not in self.statistics.lost:
                    return self._claim_missing(name)
            return self._claim_new() if fresh else self._explain_nothing_to_fetch()

    def _explain_nothing_to_fetch(self) -> FillOutcome:
        failed, folder = self.statistics.failed, self._folder
        if not failed.passing and not folder.read_claims():
            self.statistics.exhausted = folder.commit_log.generation
        return "failed" if len(failed) else "complete"

    def _claim(
        self, name: str, rows: list[int], reserved: int, before: CachedShard | None = None
    ) -> ShardJob | FillOutcome:
        folder = self._folder
        if shutil.disk_usage(folder.dir).free < reserved:
            return "disk full"
        claim = folder.create_claim("claims", name, {"reserved": reserved, "rows": rows})
        tar = folder.dir / "tmp" / folder.list_shard_paths(name)[0].name
        return ShardJob(name, claim, reserved, rows, tar, tar.with_suffix(".table"), before)

    # --- making and publishing the shard

    def _make_shard(self, job: ShardJob) -> FillOutcome:
        try:
            shard = self._write(job)
            self._mark_broken()
            if isinstance(shard, str):
                return shard
            shard = replace(shard, time=time.time())
            if job.before is not None and (shard.hash, shard.table_hash) != (
                job.before.hash,
                job.before.table_hash,
            ):
                return self._evict_lost(job, _CHANGED)
            self._publish(shard, job)
            return "published"
        finally:
            for path in job.tar.parent.glob(f"{job.name}.*"):
                path.unlink(missing_ok=True)
            with self._folder.lock():
                job.claim.release()

    def _mark_broken(self) -> None:
        """Record in the commit log which rows are broken, and which no longer are."""
        changed, self.statistics.changed = self.statistics.changed, {}
        with self._folder.lock():
            recorded = self._folder.commit_log.broken_rows()
            new = {row: why for row, why in changed.items() if recorded.get(row) != why}
            if new:
                self._folder.commit_log.mark_broken(new)

    def _evict_lost(self, job: ShardJob, why: str = "") -> FillOutcome:
        """Evict a shard whose file is gone and cannot be made again with the same content.

        Args:
            job: The attempt to make the file again.
            why: The reason, for the statistics; by default why one of its rows failed.
        """
        reasons = self.statistics.failed.reasons
        failures = (reasons[row] for row in job.rows if row in reasons)
        self.statistics.lost[job.name] = why or next(failures, _CHANGED)
        with self._folder.lock():
            if job.name in self._folder.commit_log.live_shards():
                self._folder.commit_log.evict([job.name], "not to be fetched again")
        return "failed"

    def _publish(self, shard: CachedShard, job: ShardJob) -> None:
        """Publish a shard: rename its files, then append its line to the commit log.

        No reader looks for the files before the line exists.
        """
        folder = self._folder
        with folder.lock():
            job.table.replace(folder.table_path(job.name))
            for path in folder.list_shard_paths(job.name):
                job.tar.with_name(path.name).replace(path)
            if job.before is None:
                try:
                    folder.commit_log.publish(shard)
                except OSError:
                    for path in [folder.table_path(job.name), *folder.list_shard_paths(job.name)]:
                        path.unlink()
                    raise
            job.claim.release()

    def _extend_reservation(self, job: ShardJob, need: int) -> bool:
        """Reserve more bytes for a shard that is larger than was known; return if there is room."""
        with self._folder.lock():
            self._folder.remove_leftovers()
            if not evict.make_room(self._folder, need - job.reserved):
                return False
            job.claim.write({"reserved": need, "rows": job.rows})
            job.reserved = need
            return True
