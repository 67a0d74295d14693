"""The contract between the loader and an engine, and what every engine shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import FileColumn, Index
from gpupipe.errors import EngineError, ShapeError, counted, shown
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Step
from gpupipe.runtime.transfer import to_device
from gpupipe.sampling.sampler import Plan

if TYPE_CHECKING:
    from torch import Tensor, device

Batch = dict[str, "Tensor"]
Shapes = dict[str, tuple[int, ...]]
"""Of one sample as it is delivered, by field."""


@dataclass(frozen=True)
class LoadSpec:
    """What an engine is to do: the samples, the steps, and how they are loaded.

    max_pixels: image files of more are broken samples; None: no limit.
    """

    index: Index
    pipeline: Pipeline
    loader: LoaderConfig
    threads: int
    max_pixels: int | None = None


class Engine(ABC):
    """Turns plans into batches.

    One `batches` generator runs at a time; closing it gives up what is in flight.
    """

    name: str
    device: str
    unit: ClassVar[str] = "thread"
    """What `parallelism` counts."""
    parallelism: int
    """How many threads, workers or servers make the batches."""
    batches_ahead: int
    """How many batches are made, at most, before they are asked for."""
    settings: ClassVar[frozenset[str]]
    """The settings of `loader:` that it uses, without the loader's own, such as format."""

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        """Of its settings, those that change nothing beside the others, each with why."""
        return {}

    @property
    def crew(self) -> str:
        """Who does the work: "2 threads", "4 workers"."""
        return counted(self.parallelism, self.unit)

    @classmethod
    @abstractmethod
    def on(cls, job: LoadSpec, device: str) -> Engine:
        """The engine for a job on a device, named as in loader.device.

        Raises DeviceError, EngineError.
        """

    @abstractmethod
    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """For each plan, in order, the plan and its batch: the fields, such as "image" (B, C, H,
        W), the index's values (B, ...), "label" int64 (B,) and "id" int64 (B,). All are on the
        engine's device but the ids, which stay on the CPU: most users do not ask for them.

        Plans are taken ahead of the batches as far as `loader.prefetch` says, and as many again by
        an engine that reads ahead of what it makes. The plan that comes back holds the ids that
        were delivered: fewer where samples were skipped. Raises SampleError, ShapeError,
        TooManyBadError, EngineError.
        """

    @abstractmethod
    def reading(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Only read the files of plans: for each in order, how many samples were read.

        With `making`, what a profile times.
        """

    @abstractmethod
    def making(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Carry out all steps of plans, but deliver nothing, so that sizes may differ: for each,
        how many samples were made; fewer, or none, where some failed."""

    @abstractmethod
    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """What runs: (operator, device, steps whose work it does), in order."""

    def consumed(self, plan: Plan) -> None:  # noqa: B027  # most engines have nobody to tell
        """Whoever got the batch of a plan is done with it. May be said twice."""

    @property
    def skipped(self) -> int:
        """Samples left out so far."""
        return 0

    @property
    def quarantine_file(self) -> str:
        """Where they are listed."""
        return ""

    def let_go(self, files: set[int]) -> None:
        """Hold none of these files open any more (numbers of SpanColumn.files): they are removed
        next, or others take their place.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Give back threads and memory. May be called twice."""


def without_effect(engine: type[Engine], loader: LoaderConfig, others: frozenset[str]) -> list[str]:
    """A line for each setting that was set, not to its default, and changes nothing.

    others: the settings that are used whatever the engine.
    """
    unused, defaults = engine.unused(loader), type(loader)()
    lines = []
    for name in type(loader).model_fields:
        value = getattr(loader, name)
        if name not in loader.model_fields_set or value == getattr(defaults, name):
            continue
        if name not in engine.settings | others:
            unused[name] = f"engine {engine.name} does not use it"
        if name in unused:
            lines.append(f"loader.{name}={shown(value)} has no effect: {unused[name]}")
    return lines


def torch_lowering(job: LoadSpec) -> list[tuple[str, str, tuple[str, ...]]]:
    """What a job runs in torch, as Engine.lowering tells it.

    Raises EngineError where a step has no torch lowering.
    """
    for entry in job.pipeline.entries:
        if not has_torch_lowering(entry.step):
            raise EngineError(
                f"{entry.where}: {type(entry.step).__name__} has no torch lowering; it "
                "cannot run on the DataLoader engine: use engine: dali"
            )
    return [
        ("torch.utils.data", "cpu", ()),
        *((f"{e.name}.torch", "cpu", (e.key,)) for e in job.pipeline.entries),
    ]


def has_torch_lowering(step: Step) -> bool:
    """Whether a step can run on the DataLoader engine."""
    return type(step).torch is not Step.torch


def read_by(job: LoadSpec) -> list[tuple[str, str, tuple[str, ...]]]:
    """What DALI reads the fields of a job with, as Engine.lowering tells it; parts of large files
    are mapped.
    """
    files = not job.index.columns or any(
        isinstance(column, FileColumn) for column in job.index.columns.values()
    )
    return [("io.file.read" if files else "external_source", "cpu", ())]


def known(index: Index, plan: Plan, where: device) -> Batch:
    """What is known of the samples of a plan without reading them: values and labels on `where`,
    ids on the CPU.
    """
    import torch

    arrays = {name: array[plan.ids] for name, array in index.values.items()} | {
        "label": index.labels[plan.ids]
    }
    known = {name: to_device(torch.from_numpy(array), where) for name, array in arrays.items()}
    return known | {"id": torch.from_numpy(plan.ids)}


def check_shapes(shapes: list[Shapes], plan: Plan, job: LoadSpec) -> None:
    """Raises ShapeError, naming two samples that differ, where the shapes that a field has in a
    batch are not all the same.
    """
    for name in job.pipeline.fields:
        other = next((i for i, s in enumerate(shapes) if s[name] != shapes[0][name]), None)
        if other is not None:
            raise ShapeError(
                _differing(name, [(int(plan.ids[i]), shapes[i][name]) for i in (0, other)], job)
            )


def _differing(name: str, samples: list[tuple[int, tuple[int, ...]]], job: LoadSpec) -> str:
    image = job.pipeline.fields[name].encoded
    named = [
        f"{job.index.span(id, name).path if image else job.index.path(id)} is "
        f"{'x'.join(map(str, s[1:] if image else s))}"
        for id, s in samples
    ]
    what = "images" if name == "image" else f"fields '{name}'"
    on = "" if name == job.pipeline.main else f", on: {name}"
    return (
        f"the {what} of a batch differ in {'size (height x width)' if image else 'shape'}: "
        f"{named[0]}, {named[1]}. Add a step that makes them equal to "
        f"pipeline '{job.pipeline.name}': resize with size: [height, width]{on}, "
        "random_resized_crop, center_crop or random_crop"
    )
