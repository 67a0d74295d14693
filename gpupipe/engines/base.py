"""The contract between the loader and an engine: BatchStream, Engine and Job.

Protocols that only one command or one kind of source needs are defined where they are used:
`gpupipe.bench.candidates.Tunable`, `gpupipe.bench.compare.Comparable`,
`gpupipe.bench.plan.Checkable`, `gpupipe.bench.profile.Profilable`,
`gpupipe.loading.assembly.HoldsFiles`, `gpupipe.loading.assembly.Connects`,
`gpupipe.loading.ignored_settings.ExplainsUnused`, `gpupipe.loader.MixesBatches` and `PadsImages`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.plan_annotator import PlanAnnotator
from gpupipe.annotations.rows import Orientations
from gpupipe.config import LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import DecodedCacheOptions
from gpupipe.errors import counted
from gpupipe.pipeline.entry import Entry, draw_parameters
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.sampling.sampler import Plan
from gpupipe.sampling.siblings import Siblings

if TYPE_CHECKING:
    from torch import Tensor

NO_LABEL_IN_TUPLE = (
    "a tuple is (first field, label), and the samples have no label: write format: dict"
)
"""Why `loader.format` cannot be tuple."""
Batch = dict[str, "Tensor"]
Parameters = dict[str, NDArray[Any]]
"""The parameters that a step drew, by name. The first axis counts the samples of the batch."""
Operator = tuple[str, str, tuple[str, ...]]
"""The name of an operator, the device on which it runs, and the keys of its steps."""


class DrawnStep(NamedTuple):
    """A step, with the random parameters that it drew for the samples of a batch.

    Attributes:
        entry: The step. Its scheduled numbers have the values for the epoch of the batch.
        parameters: What it drew.
    """

    entry: Entry
    parameters: Parameters


@dataclass(frozen=True)
class Job:
    """The work of an engine: the samples, the steps, and the loader settings.

    Attributes:
        index: The samples. Plans refer to its rows.
        pipeline: The steps for each field.
        loader: The settings of `loader:` in the YAML.
        threads: How many CPU threads the engine may use.
        max_pixels: Image files with more pixels count as broken samples. None means no limit.
        cache_decoded: The settings of the decoded cache; None for no cache.
    """

    index: Index
    pipeline: Pipeline
    loader: LoaderConfig
    threads: int
    max_pixels: int | None = None
    cache_decoded: DecodedCacheOptions | None = None

    def steps_for(
        self, plan: Plan, alike: tuple[tuple[str, ...], ...] = ()
    ) -> dict[str, list[DrawnStep]]:
        """Return the steps for a batch, with random parameters. Engines get steps only from here.

        The scheduled numbers of the steps have the values for the plan's epoch. If a sample comes
        twice in the epoch, it gets other parameters each time.

        Args:
            plan: The plan of the batch, of B samples.
            alike: Groups of views with equal steps. The result has the first view of each in place
                of all n of them: its parameters are arrays (n * B, ...), with the rows of one view
                after those of another. A plan with annotations has no such groups.

        Returns:
            The steps in order, by the name of the field or view. The steps of a view begin with the
            output of its field's steps.

        Raises:
            StepError: The code of a step failed.
        """
        pipeline = self.pipeline.at_epoch(plan.epoch)
        if plan.annotations is not None:
            return {
                name: list(map(DrawnStep, pipeline.entries_on(name), of_field))
                for name, of_field in plan.annotations.parameters.items()
            }
        steps = pipeline.group_entries(alike)
        every = list(itertools.chain(*steps.values()))
        drawn = iter(self._draw(every, plan, alike))
        return {
            name: [DrawnStep(entries[0], next(drawn)) for entries in of_field]
            for name, of_field in steps.items()
        }

    def _draw(
        self, steps: Sequence[Sequence[Entry]], plan: Plan, alike: tuple[tuple[str, ...], ...]
    ) -> list[Parameters]:
        """Draw the parameters of steps for a plan; those of its siblings too, at the first one."""
        seed, epoch = self.loader.seed, plan.epoch

        def draw_all(siblings: Siblings) -> list[list[Parameters]]:
            drawn: list[list[Parameters]] = [[] for _ in siblings.batches]
            for p in draw_parameters(steps, seed, epoch, siblings.ids, siblings.repeats):
                parts = {name: siblings.split(values) for name, values in p.items()}
                for number, of_plan in enumerate(drawn):
                    of_plan.append({name: part[number] for name, part in parts.items()})
            return drawn

        drawn = plan.siblings and plan.siblings.take(plan.number, self, alike, draw_all)
        return drawn or list(draw_parameters(steps, seed, epoch, plan.ids, plan.repeats))

    def annotate(
        self,
        plan: Plan,
        sizes: Mapping[str, NDArray[np.float64]],
        orientations: Mapping[str, Orientations] = MappingProxyType({}),
    ) -> Plan:
        """Move the boxes and points of a batch through all steps; return a plan that holds them.

        Engines call it before `steps_for`, once the sizes of the images are known. A step whose
        parameters depend on boxes decides them here. `labels_and_values` delivers the annotations
        of the returned plan. If the data has no annotations, the plan itself is returned.

        Args:
            plan: The plan.
            sizes: [height, width] of the decoded images, (B, 2), by field.
            orientations: The EXIF orientations of image files, (B,), by field; UNKNOWN for a file
                that the engine has not opened. It is read if a step needs the orientation.

        Raises:
            SampleIncompatibleError: A step refuses a sample, or its size is not the declared one.
            StepError: The code of a step failed.
        """
        if self.pipeline.annotations:
            plan = replace(plan, annotations=self._annotator.annotate(plan, sizes, orientations))
        return plan

    @cached_property
    def _annotator(self) -> PlanAnnotator:
        return PlanAnnotator(self.index, self.pipeline, self.steps_for)

    def list_phases(self) -> "list[Job]":
        """Return one job for each phase, in order.

        A phase is a span of epochs in which the scheduled numbers of the steps keep their values.
        """
        return [replace(self, pipeline=pipeline) for pipeline in self.pipeline.phases]


@dataclass(frozen=True)
class EngineTraits:
    """Facts about an engine, for messages and for the loader.

    The class attribute `traits` describes all engines of a class. The constructor of an engine
    replaces `parallelism` and `batches_ahead` by the numbers of that engine.

    Attributes:
        parallelism: How many threads, workers or servers produce the batches.
        batches_ahead: The maximum number of finished batches that wait for the loader.
        unit: The unit of `parallelism`, in the singular: "thread", "worker" or "server".
        parallelism_setting: The setting of `loader:` that changes `parallelism`.
        backends: Where the engine can run the steps: "cpu", "gpu", or both.
        native_memory_format: The memory format in which the engine delivers images without a copy.
        reads_elsewhere: Whether the engine reads the data on other machines. The index then comes
            from the source's method `read_through`, if the source has this method, and lists all
            samples in every epoch.
        keeps_decoded: Whether the engine uses the decoded cache, Job.cache_decoded.
        calls_in_place: Whether functions of the user's run one by one, on one core.
        overruled_settings: The settings that a server decides. Values in the client's config have
            no effect.
        reference_settings: Settings with which the engine runs the reference of each step,
            Step.torch, for `gpupipe parity`; None if it does not run the reference.
        comparison_note: A remark on the engine for readers of `gpupipe compare`, or "".
    """

    parallelism: int = 1
    batches_ahead: int = 0
    unit: str = "thread"
    parallelism_setting: str = "threads"
    backends: tuple[str, ...] = ("cpu",)
    native_memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    reads_elsewhere: bool = False
    keeps_decoded: bool = False
    calls_in_place: bool = False
    overruled_settings: frozenset[str] = frozenset()
    reference_settings: Mapping[str, Any] | None = field(default=None, hash=False)
    comparison_note: str = ""

    @property
    def parallelism_with_unit(self) -> str:
        """The parallelism in words: "2 threads", "4 workers"."""
        return counted(self.parallelism, self.unit)

    def with_counts(self, parallelism: int, batches_ahead: int) -> "EngineTraits":
        """Return a copy of these traits with the numbers of one engine."""
        return replace(self, parallelism=parallelism, batches_ahead=batches_ahead)


class BatchStream(ABC):
    """Delivers batches: the interface through which a loader uses its engine.

    Life cycle: `batches` may be called again and again, one generator at a time. Closing a
    generator cancels the batches in flight. After `close`, only `close` may be called again.

    Defining a subclass that lacks a part of the contract raises TypeError. To define a base
    class of other engines, write `class MyBase(Engine, abstract=True)`.

    Attributes:
        name: The engine's name in the YAML, as in `loader.engine`.
        settings: The names of the `loader:` settings that this engine uses, without those that the
            loader itself uses, such as `format`.
        traits: Facts about the engine, for messages and for the loader.
        device: The device of the batches: "cpu", or "gpu:0" and so on. The constructor sets it.
    """

    name: ClassVar[str]
    settings: ClassVar[frozenset[str]]
    traits: EngineTraits = EngineTraits()
    device: str

    def __init_subclass__(cls, abstract: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not abstract and (lacks := list(_iter_missing(cls))):
            raise TypeError(
                f"{cls.__name__} is no complete engine: it lacks {', '.join(lacks)}. A class that "
                "others derive from says so: class NAME(Engine, abstract=True)"
            )

    @abstractmethod
    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield each plan with its batch, in the order of the plans.

        A batch of B samples holds the fields, such as "image" (B, C, H, W), the index's values
        (B, ...), "label" int64 (B,) if samples have classes, and "id" int64 (B,). A field of
        annotations such as "boxes" is two tensors, "boxes.values" and "boxes.offsets", of which the
        loader makes a Ragged. Unless `loader.shapes` is "equal", a field of images is two tensors
        too: the elements of all images, such as "image.values" (elements,), and "image.shapes",
        int64 (B, 3). All tensors are on the engine's device, except "id", offsets and shapes: they
        stay on the CPU, because most users do not ask for ids, and rows are split there.

        The engine takes up to `loader.prefetch` plans ahead of the delivered batch. An engine that
        reads files ahead of its steps takes up to twice as many.

        Args:
            plans: The plans of one or more epochs. `Job.steps_for` draws the steps of each.

        Yields:
            The plan and its batch. The plan holds the ids that were delivered, which are fewer
            than requested if samples were skipped.

        Raises:
            SampleError: A sample cannot be read or decoded, and `loader.on_error` is "raise".
            ShapeError: The samples of a batch differ in shape.
            TooManyBadError: More samples were skipped than `loader.max_bad` allows.
            EngineError: The engine or the machine failed.
        """

    def mark_consumed(self, plan: Plan) -> None:  # noqa: B027  # most engines need not know
        """Mark the batch of `plan` as consumed. Idempotent; does nothing by default.

        The loader calls this method when the consumer is done with the batch.
        """

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory. Idempotent."""


class Engine(BatchStream, abstract=True):
    """A BatchStream that reads the data itself, built from a Job.

    docs/howto/engine_plugin.md shows a complete engine.
    """

    @classmethod
    @abstractmethod
    def on(cls, job: Job, device: str) -> "Engine":
        """Build the engine for a job on a device.

        Args:
            job: The samples, the steps and the loader settings.
            device: A value of `loader.device`, such as "cpu" or "gpu:0".

        Raises:
            DeviceError: The device is missing, or does not fit the settings.
            EngineError: The engine cannot run this job.
        """

    @classmethod
    def can_run(cls, entry: Entry, device: str) -> bool:
        """Return whether the engine can run a step on a device. By default, it can run all steps.

        `engine: auto` prefers an engine that can run all steps of the pipeline.

        Args:
            entry: The step at its position in a pipeline.
            device: A value of `loader.device`.
        """
        return True


def _iter_missing(cls: type[BatchStream]) -> Iterator[str]:
    """Yield what a class lacks to be a complete engine, as texts for an error message."""
    if not isinstance(getattr(cls, "name", None), str):
        yield "`name`, a text"
    if not isinstance(getattr(cls, "settings", None), frozenset):
        yield "`settings`, a frozenset of names"
    if not isinstance(cls.traits, EngineTraits):
        yield "`traits`, an EngineTraits"
    for name in ("on", "batches", "close"):
        if getattr(getattr(cls, name, None), "__isabstractmethod__", False):
            yield f"`{name}()`"
