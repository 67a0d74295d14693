"""The work of a download worker: fetch the samples of a shard, write it, and publish it."""

import errno
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpupipe.cache import evict, listing, shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import Fetcher, FetchStatistics, RateLimit, RowSelection
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shard_files import ShardSample, ShardWriter
from gpupipe.cache.shared_files import CachedShard, Claim, disk_size
from gpupipe.cache.store import Store

FillOutcome = Literal["published", "complete", "no room", "disk full", "failed"]
_CHANGED = "its samples are others in the store than when it was made"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_CLAIM_BYTES_PER_ROW = 12


@dataclass
class _ShardJob:
    """A shard to write. `before` is its record in the commit log if it is fetched again."""

    name: str
    claim: Claim
    reserved: int
    samples: list[ShardSample]
    before: CachedShard | None = None


class Filler:
    """Fills a cache with samples from a store, one shard at a time.

    Args:
        folder: The cache, with the listing of the data set.
        dataset: The data set.
        store: The store that has the files; by default it is opened with the cache's settings.

    Attributes:
        statistics: Counts of fetched bytes and samples, and the failures.
    """

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        self._folder, self._listing, options = folder, listing.load(folder), folder.options
        store = store or Store(dataset, options.retries, options.timeout)
        is_weighted = dataset.weight is not None
        self.statistics = FetchStatistics()
        self._selection = RowSelection(folder, self._listing, dataset.seed, is_weighted)
        rate_limit = RateLimit(folder.dir / "rate", options.rate_limit)
        connections = options.connections
        self._fetcher = Fetcher(self._listing, store, rate_limit, connections, self.statistics)

    def publish_shard(self, fresh: bool = True) -> FillOutcome:
        """Fetch and publish one shard: one whose files are missing, else a new one if `fresh`.

        Args:
            fresh: Whether to draw new samples if no published shard is missing.

        Returns:
            "published", or why nothing was published: "complete" if every sample is cached, "no
            room" if the cache is full, "disk full", or "failed" if samples could not be fetched.
        """
        try:
            job = self._claim_job(fresh)
            return job if isinstance(job, str) else self._make_shard(job)
        except OSError as e:
            if e.errno not in _DISK_FULL:
                raise
            return "disk full"

    # --- claiming a shard

    def _claim_job(self, fresh: bool) -> _ShardJob | FillOutcome:
        """Claim a missing shard, else a new one if `fresh`; or return why nothing is claimed."""
        folder = self._folder
        with folder.lock():
            folder.remove_leftovers()
            for name in folder.list_missing_shards():
                if name not in self.statistics.lost:
                    return self._claim_missing(name)
            return self._claim_new() if fresh else self._explain_nothing_to_fetch()

    def _claim_missing(self, name: str) -> _ShardJob | FillOutcome:
        """Claim a published shard whose file is gone."""
        before = self._folder.commit_log.published[name]
        table = shard_files.load_table(self._folder.table_path(name), before.table_hash)
        samples = [self._listing.get_sample(int(row)) for row in table[0]]
        reserved = disk_size(before.bytes) + disk_size(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserved):
            return "no room"
        return self._claim(name, samples, reserved, before)

    def _claim_new(self) -> _ShardJob | FillOutcome:
        """Claim a shard of samples that are not cached."""
        taken = self._folder.commit_log.published.keys() | self._folder.read_claims().keys()
        name = f"{int(max(taken, default='0')) + 1:08}"
        rows = self._selection.draw(int(name), self.statistics.failed)
        if not len(rows):
            return self._explain_nothing_to_fetch()
        samples, size = self._selection.choose_samples(rows)
        reserved = disk_size(size) + disk_size(shard_files.table_file_size(len(samples)))
        claim_size = disk_size(len(samples) * _CLAIM_BYTES_PER_ROW)
        if not evict.make_room(self._folder, reserved + claim_size):
            return "no room"
        return self._claim(name, samples, reserved)

    def _explain_nothing_to_fetch(self) -> FillOutcome:
        return "failed" if len(self.statistics.failed) else "complete"

    def _claim(
        self,
        name: str,
        samples: list[ShardSample],
        reserved: int,
        before: CachedShard | None = None,
    ) -> _ShardJob | FillOutcome:
        if shutil.disk_usage(self._folder.dir).free < reserved:
            return "disk full"
        claim = self._folder.create_claim(
            "claims", name, {"reserved": reserved, "rows": [s.row for s in samples]}
        )
        return _ShardJob(name, claim, reserved, samples, before)

    # --- fetching and publishing the shard

    def _make_shard(self, job: _ShardJob) -> FillOutcome:
        tar, table = (
            self._folder.dir / "tmp" / f"{job.name}.{ending}" for ending in ("tar", "npy")
        )
        writer = ShardWriter(tar)
        try:
            is_full = self._write_samples(job, writer)
            self._mark_broken()
            if job.before is not None and len(writer) < len(job.samples):
                reasons = self.statistics.failed.reasons
                failures = (reasons[s.row] for s in job.samples if s.row in reasons)
                return self._evict_lost(job, next(failures, _CHANGED))
            if not len(writer):
                return "no room" if is_full else "failed"
            writer.finish()
            shard = CachedShard(
                job.name,
                len(writer),
                writer.bytes,
                writer.hash,
                shard_files.table_file_size(len(writer)),
                shard_files.save_table(writer.table, table),
                time.time(),
            )
            if job.before is not None and (shard.hash, shard.table_hash) != (
                job.before.hash,
                job.before.table_hash,
            ):
                return self._evict_lost(job, _CHANGED)
            self._publish(shard, job, tar, table)
            return "published"
        finally:
            writer.close()
            tar.unlink(missing_ok=True)
            table.unlink(missing_ok=True)
            with self._folder.lock():
                job.claim.release()

    def _mark_broken(self) -> None:
        """Record in the commit log which samples are broken, and which no longer are."""
        changed, self.statistics.changed = self.statistics.changed, {}
        with self._folder.lock():
            recorded = self._folder.commit_log.broken_rows()
            new = {row: why for row, why in changed.items() if recorded.get(row) != why}
            if new:
                self._folder.commit_log.mark_broken(new)

    def _evict_lost(self, job: _ShardJob, why: str) -> FillOutcome:
        """Evict a shard whose file is gone and cannot be made again with the same content.

        Args:
            job: The attempt to make the file again.
            why: The reason, for the statistics.
        """
        self.statistics.lost[job.name] = why
        with self._folder.lock():
            if job.name in self._folder.commit_log.live_shards():
                self._folder.commit_log.evict([job.name], "not to be fetched again")
        return "failed"

    def _publish(self, shard: CachedShard, job: _ShardJob, tar: Path, table: Path) -> None:
        """Publish a shard: rename its files, then append its line to the commit log.

        No reader looks for the files before the line exists.
        """
        with self._folder.lock():
            table.replace(self._folder.table_path(job.name))
            tar.replace(self._folder.shard_path(job.name))
            if job.before is None:
                try:
                    self._folder.commit_log.publish(shard)
                except OSError:
                    self._folder.table_path(job.name).unlink()
                    self._folder.shard_path(job.name).unlink()
                    raise
            job.claim.release()

    def _write_samples(self, job: _ShardJob, writer: ShardWriter) -> bool:
        """Write the samples of a shard as they arrive; return whether a sample did not fit.

        Samples that do not fit remain for another shard.
        """
        table_size = disk_size(shard_files.table_file_size(len(job.samples)))
        for sample, image in self._fetcher.iter_fetched(job.samples):
            if image is None:
                continue
            need = disk_size(writer.size_with(sample.stored_size(len(image)))) + table_size
            if need > job.reserved and (len(writer) or not self._extend_reservation(job, need)):
                return True
            writer.add(sample, image)
            self.statistics.samples += 1
        return False

    def _extend_reservation(self, job: _ShardJob, need: int) -> bool:
        """Reserve more bytes for one sample larger than a shard; return whether there is room."""
        with self._folder.lock():
            self._folder.remove_leftovers()
            if not evict.make_room(self._folder, need - job.reserved):
                return False
            job.claim.write({"reserved": need, "rows": [s.row for s in job.samples]})
            job.reserved = need
            return True
