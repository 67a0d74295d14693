"""Whether the engines make the same pixels of the same samples and draws: step by step, in levels.

A level is 1/255 of the range of what the torch lowering makes: for uint8 a step from one value to
the next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.bench.measure import image_of
from gpupipe.config import Config, Shard
from gpupipe.dataset.index import Index
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import has_torch_lowering
from gpupipe.loader import Loader
from gpupipe.pipeline.pipeline import Entry, Pipeline

if TYPE_CHECKING:
    from torch import Tensor

Levels = NDArray[np.uint8]

MOST, MEAN = 1.0, 0.5
"""The limits, in levels: of the largest difference as long as nothing interpolates, and of the mean
difference for each step that does.
"""
_LEVELS = 255
_ROUNDING = 1e-3
_NO_STEP = "(no step)"


@dataclass(frozen=True)
class Agreement:
    """Between DALI on `device` and the torch lowering after all steps up to `step`, over all
    samples; differences in levels, PSNR in dB.

    largest: of `limit`, whether it is on the largest difference (of one pixel) or on the mean.
    images: those that both could read.
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
) -> Iterator[Agreement]:
    """One Agreement for each device and each step, of the beginning of the pipeline that ends with
    it; up to the first step that has no torch lowering.

    samples: how many, spread over the index. max_diff: another limit, in levels, for the mean
    behind steps that interpolate. last: of those, only the longest beginning.
    """
    few = _few(config, index, samples)
    entries = config.pipeline.entries
    known = next((n for n, e in enumerate(entries) if not has_torch_lowering(e.step)), len(entries))
    for end in range(known if last else min(1, known), known + 1):
        expected = list(
            _images(
                _shortened(config, entries[:end], engine="dataloader", device="cpu", workers=0), few
            )
        )
        for device in devices:
            made = _images(_shortened(config, entries[:end], engine="dali", device=device), few)
            yield _agreement(
                device, _shortened(config, entries[:end]).pipeline, expected, list(made), max_diff
            )


@dataclass(frozen=True)
class ParitySample:
    """What the engines made of one file, uint8 (H, W, C).

    name: its path below the root; made: by DALI, for each device.
    """

    name: str
    expected: Levels
    made: list[Levels]


def comparable(config: Config) -> tuple[Entry, ...]:
    """The longest beginning of a pipeline that ends in uint8 images and has torch lowerings: what
    can be shown side by side.
    """
    entries = config.pipeline.entries
    end = max(
        (
            n + 1
            for n, e in enumerate(entries)
            if _picture(e.made) and all(has_torch_lowering(b.step) for b in entries[: n + 1])
        ),
        default=0,
    )
    return entries[:end]


def _picture(spec: Spec) -> bool:
    """Whether it can be drawn."""
    return spec.dtype == "uint8" and spec.layout == "CHW" and spec.channels in (1, 3)


def side_by_side(
    config: Config, index: Index, devices: Sequence[str], samples: int
) -> Iterator[ParitySample]:
    """A few samples, after the steps that are comparable: what torchvision makes of them, and what
    DALI makes on each device.
    """
    entries = comparable(config)
    if not entries:
        return
    few = _few(config, index, samples)
    expected = dict(
        _images(_shortened(config, entries, engine="dataloader", device="cpu", workers=0), few)
    )
    made = [
        dict(_images(_shortened(config, entries, engine="dali", device=d), few)) for d in devices
    ]
    for i, image in expected.items():
        if all(i in m and m[i].shape == image.shape for m in made):
            yield ParitySample(
                os.path.relpath(few.path(i), few.root),
                image.permute(1, 2, 0).numpy(),
                [m[i].permute(1, 2, 0).numpy() for m in made],
            )


def _few(config: Config, index: Index, samples: int) -> Index:
    """Up to `samples` rows of an index, spread over it."""
    available = config.source.available(index)
    count = len(index) if available is None else len(available)
    places = np.unique(np.linspace(0, count - 1, min(samples, count)).astype(np.int64))
    return index.subset(places if available is None else available[places])


def _shortened(config: Config, entries: tuple[Entry, ...], **options: Any) -> Config:
    """The first steps of a config, a sample at a time: their sizes may differ.

    What the loader would make of the batch is left out.
    """
    loader = {
        "batch_size": 1,
        "shuffle": False,
        "dtype": None,
        "memory_format": "contiguous",
        "format": "dict",
        "ids": True,
        "on_error": "skip",
    }
    alone = config.loader.model_copy(update=loader | {"shard": Shard(), "max_bad": 1.0} | options)
    return replace(config, pipeline=replace(config.pipeline, entries=entries), loader=alone)


def _images(config: Config, index: Index) -> Iterator[tuple[int, Tensor]]:
    with Loader(config, index) as loader:
        for batch in loader:
            yield int(batch["id"]), image_of(batch)[0].cpu()


def _agreement(
    device: str,
    pipeline: Pipeline,
    expected: list[tuple[int, Tensor]],
    made: list[tuple[int, Tensor]],
    max_diff: float | None,
) -> Agreement:
    made_new = sum(e.step.interpolates for e in pipeline.entries)
    last = pipeline.entries[-1].key if pipeline.entries else _NO_STEP
    largest = not made_new
    limit = MOST if largest else MEAN * made_new if max_diff is None else max_diff
    pairs = [(a.double(), b.double()) for (_, a), (_, b) in _paired(expected, made)]
    if not pairs or any(a.shape != b.shape for a, b in pairs):
        return Agreement(device, last, math.inf, math.inf, 0.0, limit, largest, len(pairs))
    unit = (
        1.0
        if pipeline.made.dtype == "uint8"
        else max(1e-12, _range([a for a, _ in pairs])) / _LEVELS
    )
    differences = [_apart(a, b) / unit for a, b in pairs]
    pixels = sum(d.numel() for d in differences)
    square = sum(float((d**2).sum()) for d in differences) / pixels
    psnr = math.inf if square == 0 else 10 * math.log10(_LEVELS**2 / square)
    mean, most = (
        sum(float(d.sum()) for d in differences) / pixels,
        max(float(d.max()) for d in differences),
    )
    return Agreement(device, last, mean, most, psnr, limit, largest, len(pairs))


def _range(arrays: list[Tensor]) -> float:
    """From the least number to the largest, of those that are finite."""
    finite = [a[a.isfinite()] for a in arrays]
    ends = [(float(a.min()), float(a.max())) for a in finite if a.numel()]
    return max(high for _, high in ends) - min(low for low, _ in ends) if ends else 0.0


def _apart(a: Tensor, b: Tensor) -> Tensor:
    """The absolute differences: none between two infinities, or two that are no numbers."""
    return (a - b).abs().masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)


def _paired(
    expected: list[tuple[int, Tensor]], made: list[tuple[int, Tensor]]
) -> Iterator[tuple[tuple[int, Tensor], tuple[int, Tensor]]]:
    """Of samples that both engines could read."""
    by_id = dict(made)
    return (((i, image), (i, by_id[i])) for i, image in expected if i in by_id)
