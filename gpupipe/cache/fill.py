"""Packs samples into shards: fetches the samples of a shard, and writes them to a tar file."""

from gpupipe.cache import evict, shard_files
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.fetching import Fetcher, RowSelection
from gpupipe.cache.publishing import FillOutcome, ShardJob, ShardPublisher
from gpupipe.cache.settings import DataSet
from gpupipe.cache.shard_files import ShardWriter
from gpupipe.cache.shared_files import CachedShard, disk_size
from gpupipe.cache.store import Store

_CLAIM_BYTES_PER_ROW = 12


class Filler(ShardPublisher):
    """Fills a cache with shards of single samples of a store. The arguments are its base's."""

    def __init__(self, folder: CacheFolder, dataset: DataSet, store: Store | None = None) -> None:
        super().__init__(folder, dataset, store)
        is_weighted = dataset.weight is not None
        self._selection = RowSelection(folder, self._listing, dataset.seed, is_weighted)
        connections = folder.options.connections
        self._fetcher = Fetcher(
            self._listing, self._store, self._rate_limit, connections, self.statistics
        )

    def _claim_missing(self, name: str) -> ShardJob | FillOutcome:
        before = self._folder.commit_log.published[name]
        table = shard_files.load_table(self._folder.table_path(name), before.table_hash)
        reserved = disk_size(before.bytes) + disk_size(before.table_bytes)
        if not evict.make_room_for_pinned(self._folder, reserved):
            return "no room"
        return self._claim(name, table[0].tolist(), reserved, before)

    def _claim_new(self) -> ShardJob | FillOutcome:
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
        return self._claim(name, [sample.row for sample in samples], reserved)

    def _write(self, job: ShardJob) -> CachedShard | FillOutcome:
        writer = ShardWriter(job.tar)
        try:
            is_full = self._write_samples(job, writer)
            if job.before is not None and len(writer) < len(job.rows):
                return self._evict_lost(job)
            if not len(writer):
                return "no room" if is_full else "failed"
            writer.finish()
        finally:
            writer.close()
        return CachedShard(
            job.name,
            len(writer),
            writer.bytes,
            writer.hash,
            shard_files.table_file_size(len(writer)),
            shard_files.save_table(writer.table, job.table),
            0.0,
        )

    def _write_samples(self, job: ShardJob, writer: ShardWriter) -> bool:
        """Write the samples of a shard as they arrive; return whether a sample did not fit.

        Samples that do not fit remain for another shard.
        """
        table_size = disk_size(shard_files.table_file_size(len(job.rows)))
        samples = [self._listing.get_sample(row) for row in job.rows]
        for sample, image in self._fetcher.iter_fetched(samples):
            if image is None:
                continue
            need = disk_size(writer.size_with(sample.stored_size(len(image)))) + table_size
            if need > job.reserved and (len(writer) or not self._extend_reservation(job, need)):
                return True
            writer.add(sample, image)
            self.statistics.samples += 1
        return False
