"""Compares the pixels of the engines for the same samples and draws, step by step, in levels.

After the last step it also compares boxes and points with torchvision's functionals, in pixels.

For uint8, a level is a difference of 1. For other dtypes, it is 1/255 of the range of the torch
lowering's output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from gpupipe.annotations.batch_annotations import ORIG_SIZE, list_ragged, prefix_of
from gpupipe.batch_stage.stage import BatchStage
from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.dataset.columns import read_bytes
from gpupipe.dataset.index import Index
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.decoders.decoder import CannotDecodeError, FileBytes
from gpupipe.engines import registry
from gpupipe.loader import create_loader
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.sampling.selection import DEFAULTS
from gpupipe.steps.decode import Decode

if TYPE_CHECKING:
    from torch import Tensor

Images = Mapping[int, "Tensor"]
"""The images of an engine, (C, H, W) each, by sample id."""
Samples = Mapping[int, Mapping[str, "Tensor"]]
"""The fields of each sample, by its id."""

MAX, MEAN = 1.0, 0.5
"""Limits in levels. If no step interpolates, MAX limits the largest difference of a pixel. If n
steps interpolate, n * MEAN limits the mean difference.
"""
_PIXELS = 0.01
"""The limit for boxes and points. Batches have them in float32, and torchvision computes some
factors in it.
"""
_LEVELS = 255
_ROUNDING = 1e-3
_NO_STEP = "(no step)"


@runtime_checkable
class NamesDecoder(Protocol):
    """An engine class that can name the decoder for a file."""

    def find_decoder(self, loader: LoaderConfig, data: FileBytes, options: DecodeOptions) -> str:
        """Return the name of the decoder that would decode a file, for messages. A class method.

        Args:
            loader: The settings of the engine.
            data: The bytes of the file.
            options: The colour mode, EXIF rotation and dtype of the decode step.

        Raises:
            CannotDecodeError: No decoder can decode the file.
        """


@dataclass(frozen=True)
class Agreement:
    """How well an engine on `device` agrees with the torch lowering after all steps up to `step`.

    A level is a difference of 1 for uint8, else 1/255 of the range of the torch lowering's output.

    Attributes:
        device: The engine's device, "cpu" or "gpu:N".
        step: The last step that was applied.
        mean: The mean difference over all pixels, in levels.
        max: The largest difference of one pixel, in levels.
        psnr: The peak signal-to-noise ratio in dB; infinite for identical images, NaN for boxes
            and points.
        limit: The largest difference allowed, in levels.
        limits_max: Whether `limit` applies to `max`; else it applies to `mean`.
        images: How many images both engines could read.
    """

    device: str
    step: str
    mean: float
    max: float
    psnr: float
    limit: float
    limits_max: bool
    images: int

    @property
    def holds(self) -> bool:
        return (self.max if self.limits_max else self.mean) <= self.limit + _ROUNDING

    def as_json(self) -> dict[str, Any]:
        """Return all attributes and `holds` as plain JSON, in which a PSNR may be None."""
        psnr = self.psnr if math.isfinite(self.psnr) else None
        return asdict(self) | {"psnr": psnr, "holds": self.holds}


def measure(
    config: Config,
    index: Index,
    devices: list[str],
    samples: int,
    max_diff: float | None = None,
    last: bool = False,
    engine: str = "",
) -> Iterator[Agreement]:
    """Compare the pixels of an engine with those of the torch lowering, after each step.

    The comparison ends before the first step without a torch lowering.

    Args:
        config: The config.
        index: Its samples.
        devices: The compared engine's devices, "cpu" or "gpu:N".
        samples: How many samples to take, spread over the index.
        max_diff: The limit, in levels, of the mean difference after steps that interpolate; None
            for MEAN times the number of these steps.
        last: Whether to compare only once, after the last step that can be compared.
        engine: The compared engine; by default the one that `auto` prefers.

    Yields:
        One Agreement per step and device. After the last step, and after the last one of a view,
        also one per field of boxes or points.
    """
    few, name = pick_samples(config, index, samples), engine or registry.find_preferred()
    entries, can_run = config.pipeline.entries, registry.find_reference().can_run
    count = next((n for n, e in enumerate(entries) if not can_run(e, "cpu")), len(entries))
    for end in range(count if last else min(1, count), count + 1):
        field = entries[end - 1].field if end else config.pipeline.main
        reference = keep_first_steps(config, end, **reference_settings())
        expected = load_samples(reference, few)
        for device in devices:
            found = load_samples(keep_first_steps(config, end, engine=name, device=device), few)
            yield _measure_agreement(
                device, reference.pipeline, _pick(expected, field), _pick(found, field), max_diff
            )
            if end == count or (field in config.pipeline.views and entries[end].field != field):
                yield from _compare_annotations(device, reference, few, expected, found)


def count_decoders(config: Config, index: Index, samples: int, engine: str) -> dict[str, int]:
    """Return a dict from the name of each decoder to the number of images that it decodes.

    The images are those that `measure` compares. Returns {} if the first step is not decode, or if
    the engine cannot name its decoders.

    Args:
        config: The config.
        index: Its samples.
        samples: How many samples to take.
        engine: The name of the compared engine, or of the reference engine.
    """
    steps = [entry.step for entry in config.pipeline.entries_on(config.pipeline.main)]
    compared = registry.find(engine)
    if not steps or not isinstance(steps[0], Decode) or not isinstance(compared, NamesDecoder):
        return {}
    reference = reference_settings()
    options = reference if engine == reference["engine"] else {}
    loader, counts = config.loader.model_copy(update=options), Counter[str]()
    column = (few := pick_samples(config, index, samples)).columns[config.pipeline.main]
    for row in range(len(few)):
        with suppress(OSError, ValueError, CannotDecodeError):  # `measure` leaves them out, too
            data = read_bytes(column, row)
            counts[compared.find_decoder(loader, data, steps[0].options)] += 1
    return dict(counts.most_common())


def reference_settings() -> dict[str, Any]:
    """Return the loader settings of the reference engine, which runs `Step.torch` of each step."""
    engine = registry.find_reference()
    return {"engine": engine.name, **(engine.traits.reference_settings or {})}


def pick_samples(config: Config, index: Index, samples: int) -> Index:
    """Return an index of up to `samples` readable rows, spread evenly over those of `index`."""
    source = config.source
    available = source.find_available_rows(index)
    count = len(index) if available is None else len(available)
    rows = np.unique(np.linspace(0, count - 1, min(samples, count)).astype(np.int64))
    return index.subset(rows if available is None else available[rows])


def keep_first_steps(config: Config, count: int, **options: Any) -> Config:
    """Return a config with only the first steps, and batch size 1, since image sizes may differ.

    Settings that change the delivered batch, such as dtype, have their defaults. The batch stage is
    empty.

    Args:
        config: The config.
        count: How many steps to keep.
        **options: Further settings of the loader to change, such as engine.
    """
    settings = {
        "batch_size": 1,
        "shuffle": False,
        **DEFAULTS,
        "dtype": None,
        "memory_format": "contiguous",
        "format": "dict",
        "targets": "list",
        "ids": True,
        "on_error": "skip",
        "max_bad": 1.0,
        "shard": Shard(),
    }
    return replace(
        config.without_decoded_cache(),  # its images may have passed more than `count` steps
        pipeline=config.pipeline.first_steps(count),
        loader=config.loader.model_copy(update=settings | options),
        batch=BatchStage(),
    )


def load_samples(config: Config, index: Index) -> Samples:
    """Load all samples, and return the fields of each by its id, on the CPU."""
    with create_loader(config, index) as loader:
        return {
            int(batch["id"]): {name: values[0].cpu() for name, values in batch.items()}
            for batch in loader
        }


def load_images(config: Config, index: Index) -> Images:
    """Load all samples, and return their images of the main field or its first view, by id."""
    return _pick(load_samples(config, index), config.pipeline.main_outputs[0])


def _pick(samples: Samples, field: str) -> Images:
    return {id: sample[field] for id, sample in samples.items()}


def _compare_annotations(
    device: str, reference: Config, index: Index, expected: Samples, found: Samples
) -> Iterator[Agreement]:
    """Yield one Agreement for the boxes and points of each field, in pixels.

    They are compared with torchvision's functionals. If it has none for a step, they are compared
    with the torch lowering: engines share the code that moves coordinates, so all must be equal.
    """
    pipeline = reference.pipeline
    if not pipeline.annotations:
        return
    from gpupipe.bench.annotation_parity import compute_coordinates  # imports torchvision

    ids = [id for id in expected if id in found]
    sizes = {
        name: np.stack([found[id][prefix_of(pipeline, name) + ORIG_SIZE].numpy() for id in ids])
        for name in pipeline.fields
        if ids and pipeline.annotations_of(name)
    }
    numbers, seed = np.array(ids, np.int64), reference.loader.seed
    computed = compute_coordinates(pipeline, index, numbers, sizes, seed) if ids else {}
    for name, spec in list_ragged(pipeline).items():
        if spec.kind not in ("boxes", "points"):
            continue
        by_torchvision = computed.get(name)
        ours = [found[id][name].double() for id in ids]
        pairs = list(zip(by_torchvision or [expected[id][name] for id in ids], ours, strict=True))
        largest, mean = math.inf, math.inf
        if pairs and all(a.shape == b.shape for a, b in pairs):
            differences = [_subtract(a.double(), b) for a, b in pairs if a.numel()]
            largest = max((float(d.max()) for d in differences), default=0.0)
            count = max(sum(d.numel() for d in differences), 1)
            mean = sum(float(d.sum()) for d in differences) / count
        limit, against = _PIXELS, ""
        if by_torchvision is None:
            limit, against = 0.0, f", against {reference.loader.engine}"
        step = f"all: {name}, in pixels{against}"
        yield Agreement(device, step, mean, largest, math.nan, limit, True, len(pairs))


def _measure_agreement(
    device: str, pipeline: Pipeline, expected: Images, images: Images, max_diff: float | None
) -> Agreement:
    """Compare an engine's images after the steps of a pipeline with the expected ones."""
    field = pipeline.entries[-1].field if pipeline.entries else pipeline.main
    source = pipeline.source_of(field)
    interpolating = sum(e.step.interpolates for e in pipeline.entries if e.field in (field, source))
    step = pipeline.entries[-1].key if pipeline.entries else _NO_STEP
    if source != pipeline.main:
        step = f"{step} on {field}"
    limit = MAX if not interpolating else MEAN * interpolating if max_diff is None else max_diff
    pairs = [(a.double(), images[id].double()) for id, a in expected.items() if id in images]
    mean, largest, psnr = math.inf, math.inf, 0.0
    if pairs and all(a.shape == b.shape for a, b in pairs):
        unit = 1.0
        if pipeline.output_spec_of(field).dtype != "uint8":
            unit = max(1e-12, _find_range([a for a, _ in pairs])) / _LEVELS
        differences = [_subtract(a, b) / unit for a, b in pairs]
        pixels = sum(d.numel() for d in differences)
        square = sum(float((d**2).sum()) for d in differences) / pixels
        psnr = math.inf if square == 0 else 10 * math.log10(_LEVELS**2 / square)
        mean = sum(float(d.sum()) for d in differences) / pixels
        largest = max(float(d.max()) for d in differences)
    return Agreement(device, step, mean, largest, psnr, limit, not interpolating, len(pairs))


def _find_range(arrays: list[Tensor]) -> float:
    """Return the largest finite value minus the smallest; 0 without finite values."""
    finite = [a[a.isfinite()] for a in arrays]
    ends = [(float(a.min()), float(a.max())) for a in finite if a.numel()]
    return max(high for _, high in ends) - min(low for low, _ in ends) if ends else 0.0


def _subtract(a: Tensor, b: Tensor) -> Tensor:
    """Return the absolute differences of pixels; equal infinities and two NaNs differ by 0."""
    return (a - b).abs().masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
