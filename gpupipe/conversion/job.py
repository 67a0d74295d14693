"""Writes the shards of a conversion on all cores, and reads each back before it gets its name."""

from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock

from gpupipe.config import Config
from gpupipe.conversion import parquet_shards, tar_shards
from gpupipe.conversion.manifest import Manifest, ShardRecord
from gpupipe.conversion.output_folder import sync_folder, writing_to
from gpupipe.conversion.plan import StoragePlan
from gpupipe.conversion.samples import BadSample, ConvertedReader, ConvertedSample
from gpupipe.conversion.shard_contents import ContentWriter, ShardContents, StoredShard
from gpupipe.dataset.index import Index
from gpupipe.errors import DataError, GpupipeError, SampleError, TooManyBadError
from gpupipe.runtime.files import write_atomically
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.ranks import cores

SUFFIXES = {"tar": tar_shards.SUFFIX, "parquet": parquet_shards.SUFFIX}
"""The suffix of a shard, by its format."""
_POLL_SECONDS = 0.2


@dataclass
class ConversionJob:
    """Writes the shards that are not finished, on all cores."""

    config: Config
    reader: ConvertedReader
    folder: Path
    manifest: Manifest
    _stop: Event = field(default_factory=Event)
    _lock: Lock = field(default_factory=Lock)
    _done: int = 0
    _bad: int = 0

    @property
    def index(self) -> Index:
        """The samples."""
        return self.reader.index

    @property
    def plan(self) -> StoragePlan:
        """How they are stored."""
        return self.reader.plan

    def run(self, progress: Progress) -> int:
        """Write the shards, and return how many. Raises the first error of a shard."""
        count, size = len(self.index), self.manifest.rows
        parts = [range(n, min(n + size, count)) for n in range(0, count, size)]
        finished = self.manifest.finished
        self._done = sum(len(part) for part in parts if part.start in finished)
        self._bad = sum(len(shard.skipped) for shard in finished.values())
        todo = [part for part in parts if part.start not in finished]
        with ThreadPoolExecutor(cores(), "gpupipe-convert") as pool:
            futures = [pool.submit(self._make_shard, part) for part in todo]
            waiting = set(futures)
            try:
                while waiting:
                    done, waiting = wait(waiting, _POLL_SECONDS, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    progress("converting", self._done, count)
            except BaseException:  # the others must not go on for minutes
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return len(todo)

    def _make_shard(self, rows: range) -> None:
        """Write a shard, read it back, give it its name, and note it."""
        path = self.folder / self._name_shard(rows.start // self.manifest.rows)
        contents, skipped = ShardContents(), dict[str, str]()
        with writing_to(path), write_atomically(path) as temporary:
            writer = self._open_writer(temporary)
            try:
                for sample in self._read(rows):
                    if isinstance(sample, BadSample):
                        skipped[str(sample.row)] = f"{sample.path}: {sample.reason}"
                        continue
                    writer.add(sample)
                    contents.add(sample)
                writer.close()
            except BaseException:
                writer.abort()
                raise
            self._check(temporary, path, contents)
            size = temporary.stat().st_size
            if isinstance(writer, tar_shards.TarWriter):
                beside = path.with_suffix(tar_shards.INDEX_SUFFIX)
                with write_atomically(beside) as file:
                    file.write_text(writer.index_text, encoding="utf-8")
        with writing_to(path):
            if not contents.rows:
                path.unlink()
                path.with_suffix(tar_shards.INDEX_SUFFIX).unlink(missing_ok=True)
            sync_folder(self.folder)
            record = ShardRecord(
                path.name if contents.rows else "",
                rows.start,
                len(contents.rows),
                size if contents.rows else 0,
                contents.source_bytes,
                contents.compute_digest(),
                {name: sorted(kinds) for name, kinds in contents.endings.items()},
                dict(contents.changes),
                skipped,
            )
            with self._lock:
                self.manifest.add(record)

    def _name_shard(self, number: int) -> str:
        """Return the name of a shard, of the form that libraries for its format know."""
        count = -(-len(self.index) // self.manifest.rows)
        total = "" if self.plan.options.format == "tar" else f"-of-{count:05d}"
        return f"shard-{number:05d}{total}{SUFFIXES[self.plan.options.format]}"

    def _open_writer(self, path: Path) -> ContentWriter:
        if self.plan.options.format == "tar":
            return tar_shards.TarWriter(self.plan, path)
        return parquet_shards.ParquetWriter(self.plan, self.index, path)

    def _read(self, rows: range) -> Iterator[ConvertedSample | BadSample]:
        """Yield the samples of some rows. Raises DataError if a bad one must not be left out."""
        for sample in self.reader.read(rows):
            if self._stop.is_set():
                raise GpupipeError("stopped: another shard failed")
            if isinstance(sample, BadSample):
                self._count_bad(sample)
            with self._lock:
                self._done += 1
            yield sample

    def _count_bad(self, sample: BadSample) -> None:
        """Raise DataError if the config does not allow to leave a sample out."""
        if self.config.loader.on_error == "raise":
            raise SampleError(sample.path, sample.reason)
        share, count = self.config.loader.max_bad, len(self.index)
        with self._lock:
            self._bad += 1
            bad = self._bad
        if bad > share * count:
            raise TooManyBadError(
                f"{bad} of {count} samples cannot be read, more than loader.max_bad={share:g} "
                f"allows ({share * count:g}); the last is {sample.path}: {sample.reason}"
            )

    def _check(self, path: Path, name: Path, contents: ShardContents) -> None:
        """Read a shard back. Raises GpupipeError if it differs from what was written."""
        if not contents.rows:
            return
        try:
            difference = contents.explain_difference(self._read_back(path, contents))
        except (DataError, ValueError) as e:
            difference = str(e)
        if difference:
            raise GpupipeError(
                f"{name}: read back, {difference}: the disk or the memory of this machine damages "
                "data, or a file of the source changed meanwhile"
            )

    def _read_back(self, path: Path, contents: ShardContents) -> StoredShard:
        if self.plan.options.format == "tar":
            return tar_shards.read_back(self.plan, path, contents)
        return parquet_shards.read_back(self.plan, path)
