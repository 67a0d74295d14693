"""Describes a config without reading a pixel, for `gpupipe check`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from gpupipe.batch_stage.mixer import check_labels
from gpupipe.batch_stage.stage import count_pairs_of_one_sample, find_shift
from gpupipe.bench.batch_description import describe_batch, describe_field
from gpupipe.bench.user_calls import describe_calls
from gpupipe.config import Config, build_index
from gpupipe.dataset.index import Index, build_empty
from gpupipe.engines.base import Job, Operator
from gpupipe.errors import counted, shown
from gpupipe.loading.assembly import ResolvedConfig, create_sampler, find_labels
from gpupipe.loading.ignored_settings import list_doubts, list_ignored_settings
from gpupipe.loading.listed_files import check_listed_files
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime.devices import resolve
from gpupipe.sampling.sampler import Sampler
from gpupipe.sampling.selection import DEFAULTS

_FEW = 8
"""How many changes of schedules are listed. If there are more, the last one is listed too."""

_MEASURED_BATCHES = 1000


@runtime_checkable
class Checkable(Protocol):
    """An engine class that can list its operators without reading an image."""

    def plan_operators(self, job: Job, separate_files: bool) -> dict[str, list[Operator]]:
        """Return a dict from each device to the operators that would run on it. A class method.

        Args:
            job: The steps and the loader settings, with an index that has no samples.
            separate_files: Whether each image will be a file of its own.

        Raises:
            EngineError: The engine cannot run the pipeline.
        """


def operators(resolved: ResolvedConfig) -> dict[str, list[Operator]]:
    """Return a dict from each device to the operators that would run on it.

    Returns {} if the config's engine is not Checkable.

    Raises:
        EngineError: If the engine cannot run the pipeline.
    """
    config, engine = resolved.config, resolved.engine
    if not isinstance(engine, Checkable):
        return {}
    job = Job(build_empty(), config.pipeline, config.loader, resolved.threads)
    return engine.plan_operators(job, config.source.separate_files)


def describe_steps(config: Config) -> dict[str, Any]:
    """Return a config's steps and batch steps, with their parameters, as plain JSON.

    Sizes of `shape` that differ between samples are None.
    """
    steps = [
        {
            "step": entry.key,
            "parameters": entry.step.model_dump(mode="json"),
            "shape": entry.output_spec.shape,
            "dtype": entry.output_spec.dtype,
            "layout": entry.output_spec.layout,
        }
        for entry in config.pipeline.entries
    ]
    batch = [
        {
            "step": entry.key,
            "parameters": entry.step.model_dump(mode="json"),
            "fields": [*entry.layouts, "label"],
        }
        for entry in config.batch.entries
    ]
    names = {"config": config.name, "pipeline": config.pipeline.name}
    return {**names, "steps": steps, "batch_steps": batch}


def describe_operators(operators: Mapping[str, Sequence[Operator]]) -> dict[str, Any]:
    """Return the result of `operators` as plain JSON."""
    parts = ("operator", "device", "steps")
    return {
        device: [dict(zip(parts, row, strict=True)) for row in rows]
        for device, rows in operators.items()
    }


def facts(resolved: ResolvedConfig, look_at_all_files: bool = False) -> Iterator[str]:
    """Yield lines about the data, the device and the batches. Raises what load() raises.

    Args:
        resolved: The config.
        look_at_all_files: Whether to look for all files that a list names, not for a sample.
    """
    config = resolved.config
    if missing := config.source.explain_absence():
        index = build_empty()
        yield from _describe_absent_data(config, missing)
    else:
        index = build_index(config)
        yield from _describe_data(config, index)
        yield from check_listed_files(config, look_at_all_files)
    device_id = resolve(config.loader.device)
    device = "cpu" if device_id is None else f"gpu:{device_id}"
    yield (
        f"device: {device}, {counted(resolved.threads, 'thread')}, "
        f"{counted(config.loader.prefetch, 'batch', 'batches')} ahead"
    )
    yield f"batch: {describe_batch(config, index)}"
    yield from _schedules(config)
    yield from list_ignored_settings(config, resolved.engine)
    yield from _list_empty_boxes(config.pipeline)
    yield from list_doubts(config)
    yield from describe_calls(resolved)


def _describe_selection(config: Config) -> str:
    """Return the settings that select an epoch's samples; "" if all have their defaults."""
    loader = config.loader
    changed = [name for name in DEFAULTS if getattr(loader, name) != DEFAULTS[name]]
    return ", ".join(f"{name}: {shown(getattr(loader, name))}" for name in changed)


def _describe_absent_data(config: Config, missing: str) -> Iterator[str]:
    yield f"data: {missing}"
    if settings := _describe_selection(config):
        yield f"epoch: {settings}"


def _describe_data(config: Config, index: Index) -> Iterator[str]:
    """Yield lines about the data set, the settings that select an epoch's samples, and mixing."""
    sampler = create_sampler(config, index)
    check_labels(config.batch, index.classes, find_labels(config, index))
    note = f" ({index.note})" if index.note else ""
    if index.is_growing:
        yield (
            f"data: {counted(len(index), 'sample')} {index.describe_classes()} in the cache now; "
            "an epoch has those that are there when it begins"
        )
        return
    yield (
        f"data: {counted(len(index), 'sample')} {index.describe_classes()}{note}, "
        f"{counted(len(sampler), 'batch', 'batches')} of up to {sampler.batch_size} an epoch"
    )
    if settings := _describe_selection(config):
        yield (
            f"epoch: {counted(sampler.epoch_size, 'sample')} over all ranks, chosen from "
            f"{sampler.count:,} ({settings})"
        )
    if sampler.population is None and any(e.step.mixes_samples for e in config.batch.entries):
        yield f"mixing: {_describe_mixing(sampler)}"


def _list_empty_boxes(pipeline: Pipeline) -> Iterator[str]:
    """Yield a warning for each step that makes empty boxes which no later step drops."""
    for name in pipeline.views or (pipeline.main,):
        source = pipeline.source_of(name)
        entries = pipeline.entries_on(source) + (
            pipeline.entries_on(name) if name != source else []
        )
        for number, entry in enumerate(entries):
            later = (e.step.drops_empty_boxes for e in entries[number + 1 :])
            if entry.step.empties_boxes and not any(later):
                yield (
                    f"warning: {entry.where}: after {entry.name}, boxes outside of its window are "
                    "[0, 0, 0, 0], and no step drops them: write sanitize_bounding_boxes after it"
                )


def _describe_mixing(sampler: Sampler) -> str:
    """Describe how many samples mix with themselves, and how many batches are too small to mix."""
    batches = [plan.ids for plan in islice(sampler.begin(), _MEASURED_BATCHES)]
    samples, unmixed = sum(map(len, batches)), sum(find_shift(ids) == 0 for ids in batches)
    share = 100 * sum(map(count_pairs_of_one_sample, batches)) / samples
    first = "batch" if len(batches) == 1 else f"{len(batches):,} batches"
    too_small = "it" if len(batches) == 1 else f"{unmixed:,} of them"
    too_small += f" {'is' if unmixed == 1 else 'are'} too small to mix different samples"
    note = f"; {too_small}" if unmixed else ""
    return f"{share:.3g} % of the samples of the first {first} are mixed with themselves{note}"


def _schedules(config: Config) -> Iterator[str]:
    """Yield one line for each epoch in which schedules change parameters, with the new values."""
    epochs = sorted({*config.pipeline.later, *config.batch.later})
    if not epochs:
        return
    yield f"schedules: {counted(len(epochs), 'change')}, the steps above are those of epoch 0"
    before = config.at_epoch(0)
    for number, epoch in enumerate(epochs):
        now = config.at_epoch(epoch)
        if number < _FEW or number == len(epochs) - 1:
            yield f"  from epoch {epoch} on: {', '.join(_changes(before, now))}"
        elif number == _FEW:
            yield f"  and in {counted(len(epochs) - _FEW - 1, 'epoch')} up to {epochs[-2]}"
        before = now


def _changes(before: Config, now: Config) -> Iterator[str]:
    """Yield the new value of each parameter and output that differs between two epochs."""
    changes: dict[str, None] = {}
    for stage in ("pipeline", "batch"):
        steps = zip(getattr(before, stage).entries, getattr(now, stage).entries, strict=True)
        for old, new in steps:
            values = old.step.model_dump(mode="json"), new.step.model_dump(mode="json")
            for name in values[1]:
                if values[0][name] != values[1][name]:
                    changes[f"{new.key}.{name}={shown(values[1][name])}"] = None
    yield from changes
    for name in now.pipeline.outputs:
        if before.pipeline.output_spec_of(name) != now.pipeline.output_spec_of(name):
            yield describe_field(now, name)
