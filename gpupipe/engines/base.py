"""The contract between the loader and an engine, and what every engine shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpupipe.config import LoaderConfig
from gpupipe.errors import EngineError, ShapeError
from gpupipe.index import Index
from gpupipe.pipeline import Pipeline
from gpupipe.sampler import Plan
from gpupipe.step import Step

if TYPE_CHECKING:
    from torch import Tensor

Batch = dict[str, "Tensor"]


@dataclass(frozen=True)
class Job:
    """What an engine is to do: the samples, the steps, and how they are loaded."""

    index: Index
    pipeline: Pipeline
    loader: LoaderConfig
    threads: int


class Engine(ABC):
    """Turns plans into batches. One `batches` generator runs at a time; closing it gives up what is in flight."""

    name: str
    device: str
    crew: str
    """Who does the work: "2 threads", "4 workers"."""

    @classmethod
    @abstractmethod
    def on(cls, job: Job, device: str) -> Engine:
        """The engine for a job on a device, named as in loader.device. Raises DeviceError, EngineError."""

    @abstractmethod
    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """For each plan, in order, the plan and its batch: "image" (B, C, H, W), "label" int64 (B,), "id" int64 (B,).

        Plans are taken ahead of the batches as far as `loader.prefetch` says. The plan that comes back holds the ids that were delivered:
        fewer where samples were skipped. Raises SampleError, ShapeError, TooManyBadError, EngineError.
        """

    @abstractmethod
    def reading(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Only read the files of plans: for each in order, how many samples were read. With `making`, what a profile times."""

    @abstractmethod
    def making(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Carry out all steps of plans, but deliver nothing, so that sizes may differ: for each, how many samples were made; fewer, or none,
        where some failed."""

    @abstractmethod
    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """What runs: (operator, device, steps whose work it does), in order."""

    @property
    def skipped(self) -> int:
        """Samples left out so far."""
        return 0

    @property
    def quarantine_file(self) -> str:
        """Where they are listed."""
        return ""

    def let_go(self, files: set[int]) -> None:
        """Hold none of these files open any more (numbers of Spans.files): they are removed next, or others take their place."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give back threads and memory. May be called twice."""


def torch_lowering(job: Job) -> list[tuple[str, str, tuple[str, ...]]]:
    """What a job runs in torch, as Engine.lowering tells it. Raises EngineError where a step has no torch lowering."""
    for entry in job.pipeline.entries:
        if not has_torch_lowering(entry.step):
            raise EngineError(f"{entry.where}: {type(entry.step).__name__} has no torch lowering; it cannot run on the DataLoader engine: use engine: dali")
    return [("torch.utils.data", "cpu", ()), *((f"{e.name}.torch", "cpu", (e.key,)) for e in job.pipeline.entries)]


def has_torch_lowering(step: Step) -> bool:
    """Whether a step can run on the DataLoader engine."""
    return type(step).torch is not Step.torch


def check_shapes(shapes: list[tuple[int, ...]], plan: Plan, job: Job) -> None:
    """Raises ShapeError, naming two samples that differ, where the (height, width, channels) of a batch are not all the same."""
    other = next((i for i, s in enumerate(shapes) if s != shapes[0]), None)
    if other is None:
        return
    named = [f"{job.index.path(int(plan.ids[i]))} is {shapes[i][0]}x{shapes[i][1]}" for i in (0, other)]
    raise ShapeError(
        f"the images of a batch differ in size (height x width): {named[0]}, {named[1]}. Add a step that makes them equal to pipeline "
        f"'{job.pipeline.name}': resize with size: [height, width], random_resized_crop, center_crop or random_crop"
    )
