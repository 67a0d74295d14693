"""Compares the pixels of the engines for the same samples and draws, step by step, in levels.

For uint8 a level is a step from one value to the next. For other dtypes it is 1/255 of the range of
the torch lowering's output.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.stage import BatchStage
from gpupipe.bench.measure import image_of
from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.dataset.columns import read_bytes
from gpupipe.dataset.index import Index
from gpupipe.dataset.population import PartlyAvailable
from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.decoders.decoder import CannotDecodeError, FileBytes
from gpupipe.engines import registry
from gpupipe.loader import create_loader
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.sampling.selection import DEFAULTS
from gpupipe.steps.decode import Decode

if TYPE_CHECKING:
    from torch import Tensor

Levels = NDArray[np.uint8]

MOST, MEAN = 1.0, 0.5
"""The limits in levels: MOST of the largest difference while no step interpolates, and MEAN of the
mean difference for each step that does.
"""
_LEVELS = 255
_ROUNDING = 1e-3
_NO_STEP = "(no step)"


@runtime_checkable
class NamesDecoder(Protocol):
    """The class of an engine that says which decoder decodes a file."""

    def find_decoder(self, loader: LoaderConfig, data: FileBytes, options: DecodeOptions) -> str:
        """Return the decoder's name, for messages. A class method.

        Args:
            loader: The settings of the engine.
            data: The bytes of the file.
            options: How it is decoded.

        Raises:
            CannotDecodeError: No decoder can.
        """


@dataclass(frozen=True)
class Agreement:
    """How well an engine on `device` agrees with the torch lowering after all steps up to `step`.

    Attributes:
        device: The engine's device, "cpu" or "gpu:N".
        step: The last step that was applied.
        mean: The mean difference over all pixels, in levels.
        most: The largest difference of one pixel, in levels.
        psnr: The peak signal-to-noise ratio in dB; infinite for identical images.
        limit: The largest difference allowed, in levels.
        largest: Whether `limit` applies to `most`; else it applies to `mean`.
        images: How many images both engines could read.
    """

    device: str
    step: str
    mean: float
    most: float
    psnr: float
    limit: float
    largest: bool
    images: int

    @property
    def holds(self) -> bool:
        return (self.most if self.largest else self.mean) <= self.limit + _ROUNDING


def measure(
    config: Config,
    index: Index,
    devices: list[str],
    samples: int,
    max_diff: float | None = None,
    last: bool = False,
    engine: str = "",
) -> Iterator[Agreement]:
    """Compare the engines after each step, up to the first step without a torch lowering.

    Args:
        config: The config.
        index: Its samples.
        devices: The compared engine's devices, "cpu" or "gpu:N".
        samples: How many samples to take, spread over the index.
        max_diff: Another limit, in levels, of the mean difference after steps that interpolate.
        last: Compare only after the last of these steps.
        engine: The compared engine; by default the one that `auto` prefers.

    Yields:
        One Agreement per step and device.
    """
    few, name = _pick_samples(config, index, samples), engine or registry.preferred()
    entries, can_run = config.pipeline.entries, registry.reference().can_run
    comparable_steps = next(
        (n for n, e in enumerate(entries) if not can_run(e, "cpu")), len(entries)
    )
    first = comparable_steps if last else min(1, comparable_steps)
    for end in range(first, comparable_steps + 1):
        field = entries[end - 1].field if end else config.pipeline.main
        expected = list(_images(_with_steps(config, entries[:end], **_reference()), few, field))
        for device in devices:
            part = _with_steps(config, entries[:end], engine=name, device=device)
            images = _images(part, few, field)
            yield _measure_agreement(
                device,
                _with_steps(config, entries[:end]).pipeline,
                expected,
                list(images),
                max_diff,
            )


def count_decoders(config: Config, index: Index, samples: int, engine: str) -> dict[str, int]:
    """Return how many of the images that `measure` takes each decoder decodes, by its name.

    Args:
        config: The config.
        index: Its samples.
        samples: How many samples to take.
        engine: The compared engine, or the reference's.
    """
    first = next(iter(config.pipeline.entries_on(config.pipeline.main)), None)
    compared = registry.find(engine)
    if (
        first is None
        or not isinstance(first.step, Decode)
        or not isinstance(compared, NamesDecoder)
    ):
        return {}
    reference = _reference()
    options = reference if engine == reference["engine"] else {}
    loader, counts = config.loader.model_copy(update=options), Counter[str]()
    column = (few := _pick_samples(config, index, samples)).columns[config.pipeline.main]
    for row in range(len(few)):
        with suppress(OSError, ValueError, CannotDecodeError):  # `measure` leaves them out, too
            data = read_bytes(column, row)
            counts[compared.find_decoder(loader, data, first.step.options)] += 1
    return dict(counts.most_common())


@dataclass(frozen=True)
class ParitySample:
    """One file as each engine delivers it, uint8 (H, W, C).

    Attributes:
        name: The file's path below the root.
        expected: torchvision's image.
        images: The compared engine's image, one per device.
    """

    name: str
    expected: Levels
    images: list[Levels]


def drawable_steps(config: Config) -> tuple[Entry, ...]:
    """Return the steps after which the engines' images can be shown side by side.

    They are the longest beginning of the pipeline that ends in uint8 images and whose steps all
    have torch lowerings.
    """
    entries, can_run = config.pipeline.entries, registry.reference().can_run
    end = max(
        (
            n + 1
            for n, e in enumerate(entries)
            if _is_drawable(e.output_spec) and all(can_run(b, "cpu") for b in entries[: n + 1])
        ),
        default=0,
    )
    return entries[:end]


def _is_drawable(spec: Spec) -> bool:
    """Return whether an image of this spec can be drawn."""
    return spec.dtype == "uint8" and spec.layout == "CHW" and spec.channels in (1, 3)


def iter_samples(
    config: Config, index: Index, devices: Sequence[str], samples: int, engine: str
) -> Iterator[ParitySample]:
    """Yield a few samples after `drawable_steps`, from torchvision and the compared engine.

    Samples that one of the engines cannot read, or whose sizes differ, are left out.
    """
    entries = drawable_steps(config)
    if not entries:
        return
    few = _pick_samples(config, index, samples)
    expected = dict(_images(_with_steps(config, entries, **_reference()), few))
    by_device = [
        dict(_images(_with_steps(config, entries, engine=engine, device=d), few)) for d in devices
    ]
    for i, image in expected.items():
        if all(i in images and images[i].shape == image.shape for images in by_device):
            yield ParitySample(
                os.path.relpath(few.location(i), few.root),
                image.permute(1, 2, 0).numpy(),
                [images[i].permute(1, 2, 0).numpy() for images in by_device],
            )


def _reference() -> dict[str, Any]:
    """Return the settings that run the reference of each step."""
    engine = registry.reference()
    return {"engine": engine.name, **(engine.traits.reference_settings or {})}


def _pick_samples(config: Config, index: Index, samples: int) -> Index:
    """Return up to `samples` rows of an index, spread over it."""
    source = config.source
    available = source.find_available_rows(index) if isinstance(source, PartlyAvailable) else None
    count = len(index) if available is None else len(available)
    rows = np.unique(np.linspace(0, count - 1, min(samples, count)).astype(np.int64))
    return index.subset(rows if available is None else available[rows])


def _with_steps(config: Config, entries: tuple[Entry, ...], **options: Any) -> Config:
    """Return a config with only these steps and batches of one, since sizes may differ.

    Settings that change the delivered batch, such as dtype, have their defaults, and no steps run
    on whole batches.
    """
    loader = {
        "batch_size": 1,
        "shuffle": False,
        **DEFAULTS,
        "dtype": None,
        "memory_format": "contiguous",
        "format": "dict",
        "ids": True,
        "on_error": "skip",
    }
    alone = config.loader.model_copy(update=loader | {"shard": Shard(), "max_bad": 1.0} | options)
    steps = config.pipeline.first_steps(len(entries))
    decoding = config.without_decoded_cache()  # it is of the whole pipeline's beginning
    return replace(decoding, pipeline=steps, loader=alone, batch=BatchStage())


def _images(config: Config, index: Index, field: str | None = None) -> Iterator[tuple[int, Tensor]]:
    """Yield id and pixels of each sample: of `field`, or of the main field or its first view."""
    with create_loader(config, index) as loader:
        for batch in loader:
            yield int(batch["id"]), (batch[field] if field else image_of(batch))[0].cpu()


def _measure_agreement(
    device: str,
    pipeline: Pipeline,
    expected: list[tuple[int, Tensor]],
    images: list[tuple[int, Tensor]],
    max_diff: float | None,
) -> Agreement:
    field = pipeline.entries[-1].field if pipeline.entries else pipeline.main
    fields = (field, pipeline.source_of(field))
    interpolating = sum(e.step.interpolates for e in pipeline.entries if e.field in fields)
    last = pipeline.entries[-1].key if pipeline.entries else _NO_STEP
    if pipeline.source_of(field) != pipeline.main:
        last = f"{last} on {field}"
    largest = not interpolating
    limit = MOST if largest else MEAN * interpolating if max_diff is None else max_diff
    pairs = [(a.double(), b.double()) for (_, a), (_, b) in _pair_by_id(expected, images)]
    if not pairs or any(a.shape != b.shape for a, b in pairs):
        return Agreement(device, last, math.inf, math.inf, 0.0, limit, largest, len(pairs))
    unit = (
        1.0
        if pipeline.output_spec_of(field).dtype == "uint8"
        else max(1e-12, _range([a for a, _ in pairs])) / _LEVELS
    )
    differences = [_absolute_difference(a, b) / unit for a, b in pairs]
    pixels = sum(d.numel() for d in differences)
    square = sum(float((d**2).sum()) for d in differences) / pixels
    psnr = math.inf if square == 0 else 10 * math.log10(_LEVELS**2 / square)
    mean, most = (
        sum(float(d.sum()) for d in differences) / pixels,
        max(float(d.max()) for d in differences),
    )
    return Agreement(device, last, mean, most, psnr, limit, largest, len(pairs))


def _range(arrays: list[Tensor]) -> float:
    """Return the largest finite number less the smallest."""
    finite = [a[a.isfinite()] for a in arrays]
    ends = [(float(a.min()), float(a.max())) for a in finite if a.numel()]
    return max(high for _, high in ends) - min(low for low, _ in ends) if ends else 0.0


def _absolute_difference(a: Tensor, b: Tensor) -> Tensor:
    """Return the absolute differences; equal infinities and two NaNs differ by 0."""
    return (a - b).abs().masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)


def _pair_by_id(
    expected: list[tuple[int, Tensor]], images: list[tuple[int, Tensor]]
) -> Iterator[tuple[tuple[int, Tensor], tuple[int, Tensor]]]:
    """Pair the images of those samples that both engines could read."""
    by_id = dict(images)
    return (((i, image), (i, by_id[i])) for i, image in expected if i in by_id)
