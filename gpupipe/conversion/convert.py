"""Converts a data set: writes shards on all cores, reads each back, and goes on after a kill."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe import config as configs
from gpupipe.cache.stored_index import StoredIndex
from gpupipe.config import Config, build_index, locate_errors
from gpupipe.conversion import output_config, tar_shards
from gpupipe.conversion.index_check import explain_difference
from gpupipe.conversion.job import SUFFIXES, ConversionJob
from gpupipe.conversion.manifest import Manifest, ShardRecord
from gpupipe.conversion.output_folder import hold_folder, writing_to
from gpupipe.conversion.plan import Options, StoragePlan, plan_storage
from gpupipe.conversion.samples import ConvertedReader, ConvertedSample
from gpupipe.dataset.index import Index
from gpupipe.decoders.chain import DecoderChain
from gpupipe.errors import ConfigError, DataError, GpupipeError
from gpupipe.runtime.files import TEMPORARY_SUFFIX, write_atomically
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.ranks import cores
from gpupipe.sources.webdataset import Webdataset

CLASSES = "classes.txt"
_MEASURED = 32
_MAX_SHARDS = 99_999


@dataclass(frozen=True)
class ConversionResult:
    """What a conversion has done.

    Attributes:
        config: The config of the shards.
        plan: How samples are stored.
        shards: All shards.
        made: How many of them this run has made; the others are of an earlier run.
        seconds: How long this run took.
        source_bytes: The size of the samples' fields in the source.
        bytes: The size of the shards.
        is_renumbered: Whether the samples of the source have other ids: those of `data.shards` do.
    """

    config: Path
    plan: StoragePlan
    shards: tuple[ShardRecord, ...]
    made: int
    seconds: float
    source_bytes: int
    bytes: int
    is_renumbered: bool

    @property
    def samples(self) -> int:
        """The number of samples in the shards."""
        return sum(shard.samples for shard in self.shards)

    @property
    def skipped(self) -> list[str]:
        """The place of each sample that was left out, and why."""
        return [reason for shard in self.shards for reason in shard.skipped.values()]

    @property
    def changes(self) -> Mapping[str, int]:
        """How many files were changed, by the kind of the change."""
        total: Counter[str] = Counter()
        for shard in self.shards:
            total.update(shard.changes)
        return total


def convert(config: Config, folder: Path, options: Options, progress: Progress) -> ConversionResult:
    """Write all samples of a config to shards in a folder, and a config that reads them.

    Shards that an earlier run has finished are kept.

    Args:
        config: The config.
        folder: The folder of the shards, created if necessary.
        options: What the user asks for.
        progress: Called with an activity, the number of samples done, and all samples.

    Raises:
        ConfigError: The format cannot hold a field.
        DataError: A sample cannot be stored, and `loader.on_error` is raise; or too many cannot.
        EngineError: The machine failed while samples were read.
        GpupipeError: The folder holds something else, or cannot be written, or a shard is not as
            it was written.
    """
    started = time.monotonic()
    if any(character in str(folder) for character in "*?[{"):
        raise GpupipeError(f"{folder}: a pattern of shards cannot have *, ?, [ or {{ in its folder")
    index = build_index(config, progress)
    with locate_errors(config, "data"):
        if is_stored := isinstance(index, StoredIndex):
            index = index.find_whole()
        else:
            index = config.source.read_through(index)
        plan = plan_storage(config, index, options)
    pattern = f"{folder}/shard-*{SUFFIXES[options.format]}"
    draft = plan.options_of_source(pattern, {}, f"{folder}/{CLASSES}")
    output_config.make_config(config, plan, draft)
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
    chain = DecoderChain(config.loader.decoder, config.source.max_pixels)
    reader = ConvertedReader(plan, index, chain)
    with hold_folder(folder):
        settings = _describe(index, options) | {"rows": _choose_rows(reader, options)}
        with writing_to(folder):
            for leftover in folder.glob(f"*{TEMPORARY_SUFFIX}"):
                leftover.unlink()
            manifest = Manifest(folder, settings)
        job = ConversionJob(config, reader, folder, manifest)
        made = job.run(progress)
        shards = tuple(manifest.finished[first] for first in sorted(manifest.finished))
        if not any(shard.samples for shard in shards):
            raise DataError(f"{folder}: every sample was left out, so there is nothing to read")
        path = _finish(job, pattern, shards, progress)
    return ConversionResult(
        path,
        plan,
        shards,
        made,
        time.monotonic() - started,
        sum(shard.source_bytes for shard in shards),
        sum(shard.bytes for shard in shards),
        is_stored,
    )


def _finish(
    job: ConversionJob, pattern: str, shards: tuple[ShardRecord, ...], progress: Progress
) -> Path:
    """Write the names of the classes and the config; return its path.

    Tar shards are indexed once, so that the first load() need not, and all labels and numbers are
    compared with those of the source.
    """
    plan, folder = job.plan, job.folder
    kinds: dict[str, set[str]] = {}
    for shard in shards:
        for name, several in shard.kinds.items():
            kinds.setdefault(name, set()).update(several)
    classes = folder / CLASSES
    endings = tar_shards.find_endings(plan, kinds)
    data = plan.options_of_source(pattern, endings, str(classes))
    made = output_config.make_config(job.config, plan, data)
    path = output_config.name_config(job.config, folder)
    comment = f"Written by 'gpupipe convert {job.config.name} {folder}'."
    with writing_to(folder):
        if plan.classes:
            with write_atomically(classes) as file:
                file.write_text("\n".join(plan.classes) + "\n", encoding="utf-8", newline="\n")
        with write_atomically(path) as file:
            file.write_text(output_config.write_text(made, comment), encoding="utf-8")
    if plan.options.format == "tar":
        skipped = [int(row) for shard in shards for row in shard.skipped]
        rows = np.delete(np.arange(len(job.index)), skipped)
        other = Webdataset.model_validate(data).index(progress)
        if difference := explain_difference(plan, job.index, rows, other):
            raise GpupipeError(f"{folder}: {difference}: remove the folder, and convert again")
    try:
        configs.read(path)
    except ConfigError as e:
        raise GpupipeError(
            f"all shards are finished, but {path} cannot be read: {e}\nA file that it names may "
            f"lie beside the config of the source: copy it to {folder}"
        ) from e
    return path


def _describe(index: Index, options: Options) -> dict[str, Any]:
    """Return what the shards depend on, as plain JSON."""
    return {
        "data": index.fingerprint,
        "samples": len(index),
        "format": options.format,
        "max_side": options.max_side,
        "quality": options.quality if options.max_side else None,
        "raw": options.raw,
        "shard_size": options.shard_bytes,
    }


def _choose_rows(reader: ConvertedReader, options: Options) -> int:
    """Return how many samples a shard has, by the mean size of some samples as they are stored.

    A small data set has a shard for each core.
    """
    count = len(reader.index)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MEASURED)).astype(np.int64)).tolist()
    samples = [sample for row in rows for sample in reader.read(range(row, row + 1))]
    sizes = [
        sum(len(content.data) for content in sample.contents.values())
        for sample in samples
        if isinstance(sample, ConvertedSample)
    ]
    of_size = round(options.shard_bytes * len(sizes) / max(1, sum(sizes))) if sizes else count
    return max(min(of_size, -(-count // cores())), -(-count // _MAX_SHARDS), 1)
