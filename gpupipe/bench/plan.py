"""Describes a config without reading a pixel, for `gpupipe check`."""

from __future__ import annotations

from collections.abc import Iterator

from gpupipe.config import Config
from gpupipe.dataset.index import Index, nothing
from gpupipe.engines.base import LoadSpec, torch_lowering
from gpupipe.loader import ignored_settings, sampler_of, with_ranks
from gpupipe.runtime.devices import cores_of_rank, resolve

Operator = tuple[str, str, tuple[str, ...]]


def operators(config: Config, engine: str) -> dict[str, list[Operator]]:
    """Return the operators that an engine runs, by the loader's device.

    Returns:
        For each device, tuples (operator, the operator's own device, the steps that it implements).

    Raises:
        EngineError: If the engine cannot run the pipeline.

    """
    job = LoadSpec(nothing(), config.pipeline, config.loader, _threads(config))
    if engine == "dataloader":
        return {"cpu": torch_lowering(job)}
    from gpupipe.engines.dali.graph import build_graph
    from gpupipe.engines.dali.lowering import Device, Lowering

    build_graph(job, Lowering(job, "cpu", True), None, lambda: [])
    devices: tuple[Device, ...] = ("gpu", "cpu")
    encoded = any(spec.encoded for spec in config.pipeline.fields.values())
    read = "io.file.read" if encoded and config.source.separate_files else "external_source"
    return {
        d: [
            (read, "cpu", ()),
            *((e.op, e.device, e.steps) for e in Lowering(job, d, d == "cpu").operators()),
        ]
        for d in devices
    }


def facts(config: Config) -> Iterator[str]:
    """Yield lines about the data, the device and the batches; raise what load() raises."""
    missing = config.source.absent()
    yield f"data: {missing or _about(config, config.source.index())}"
    device_id = resolve(config.loader.device)
    yield (
        f"device: {'cpu' if device_id is None else f'gpu:{device_id}'}, {_threads(config)} "
        f"threads, {config.loader.prefetch} batches ahead"
    )
    yield f"batch: {_batch(config)}"
    yield from ignored_settings(config)


def _threads(config: Config) -> int:
    return cores_of_rank() if config.loader.threads == "auto" else config.loader.threads


def _about(config: Config, index: Index) -> str:
    sampler = sampler_of(with_ranks(config), index)
    note = f" ({index.note})" if index.note else ""
    return (
        f"{len(index):,} samples in {len(index.classes):,} classes{note}, {len(sampler):,} "
        f"batches of up to {sampler.batch_size} an epoch"
    )


def _batch(config: Config) -> str:
    pipeline = config.pipeline
    unequal = [name for name in pipeline.fields if None in pipeline.made_of(name).shape]
    of = "" if unequal == [pipeline.main] else f" of {' and '.join(unequal)}"
    equal = f"; no step fixes the size{of}, so all images must have the same" if unequal else ""
    return f"{', '.join(_field(config, name) for name in pipeline.fields)}, label int64 (B,){equal}"


def _field(config: Config, name: str) -> str:
    spec = config.pipeline.made_of(name)
    dtype, memory = spec.dtype, ""
    if name == config.pipeline.main:
        dtype, memory = (
            config.loader.dtype or dtype,
            f" {config.loader.memory_format}" if config.pipeline.fields[name].encoded else "",
        )
    shape = ", ".join(
        axis if n is None else str(n) for axis, n in zip(spec.layout, spec.shape, strict=True)
    )
    return f"{name} {dtype} (B{', ' if shape else ''}{shape}){memory}"
