"""The contract between the loader and an engine: BatchStream, Profilable and Engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.decoded_cache_options import DecodedCacheOptions
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Population
from gpupipe.errors import EngineError, counted
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Step
from gpupipe.sampling.sampler import Plan, Sampler

if TYPE_CHECKING:
    from torch import Tensor

Batch = dict[str, "Tensor"]
Operator = tuple[str, str, tuple[str, ...]]
"""An operator that runs, its own device, and the keys of the steps that it implements."""


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


@dataclass(frozen=True)
class LoaderParts:
    """What a loader is made of.

    Attributes:
        config: The configuration, with the rank and world size of the loader.
        index: The samples.
        sampler: Their order.
        engine: What makes the batches.
        population: The samples of each epoch, if the source grows.
    """

    config: Config
    index: Index
    sampler: Sampler
    engine: Engine
    population: Population | None = None


class BatchStream(ABC):
    """Turns plans into batches. Everything that delivers batches of an engine needs only this.

    Life cycle: `batches` may be called again and again, one generator at a time. Closing a
    generator cancels the batches in flight. After `close` no method may be called but `close`.

    Attributes:
        name: The engine's name in the YAML, as in `loader.engine`.
    """

    name: ClassVar[str]

    @abstractmethod
    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield each plan with its batch, in the order of the plans.

        A batch holds the fields, such as "image" (B, C, H, W), the index's values (B, ...),
        "label" int64 (B,) and "id" int64 (B,). All tensors are on the engine's device except "id".
        The ids stay on the CPU, because most users do not ask for them.

        The parameters of a step are `entry.parameters(seed, plan.epoch, plan.ids, plan.repeats)`:
        a sample that comes again in an epoch gets other draws.

        The engine takes up to `loader.prefetch` plans ahead of the delivered batch. An engine that
        reads files ahead of its steps takes as many again.

        Args:
            plans: The plans of one or more epochs.

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
        """Mark the batch of `plan` as consumed. Idempotent; does nothing by default."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory. Idempotent."""


@runtime_checkable
class Profilable(Protocol):
    """An engine that can do a part of its work alone, for `gpupipe profile`.

    For an engine without these methods, `gpupipe profile` times only whole batches.
    """

    def iter_read_only(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Read the files of the plans and do nothing else.

        Yields:
            For each plan, in order, how many samples were read.
        """

    def iter_without_delivery(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """Run all steps of the plans but deliver no batch.

        Without delivery the samples of a batch may differ in size.

        Yields:
            For each plan, in order, how many samples passed all steps. If samples fail, it is
            fewer, or 0.
        """


class Engine(BatchStream):
    """A BatchStream that is built from a config, and describes itself.

    Attributes:
        device: The device of the batches: "cpu", or "gpu:0" and so on.
        reads_data: Whether the engine reads the data that the config describes. If not, it
            connects to servers that do, and decide the order too: see `connect`.
        reads_elsewhere: Whether the engine reads the data on other machines: its index is what
            Source.read_through returns, and has all samples in every epoch.
        backends: Where the engine can run the steps: "cpu", "gpu", or both.
        unit: What `parallelism` counts, in the singular.
        parallelism: How many threads, workers or servers produce the batches.
        parallelism_setting: The setting of `loader:` that changes `parallelism`.
        batches_ahead: How many finished batches can wait until the loader asks for them, at most.
        settings: The names of the `loader:` settings that this engine uses. The settings that the
            loader itself uses, such as `format`, are not among them.
        overruled_settings: Those of `settings` that a server decides, whatever this side sets.
        native_memory_format: The memory format of images that costs the engine no copy.
        keeps_decoded: Whether the engine uses the decoded cache, Job.cache_decoded.
        reference_settings: Settings with which the engine runs the reference of each step,
            Step.torch, for `gpupipe parity`; None if it does not run the reference.
        comparison_note: What a reader of `gpupipe compare` must know about the engine, or "".
    """

    device: str
    reads_data: ClassVar[bool] = True
    reads_elsewhere: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ("cpu",)
    unit: ClassVar[str] = "thread"
    parallelism: int
    parallelism_setting: ClassVar[str] = "threads"
    batches_ahead: int
    settings: ClassVar[frozenset[str]]
    overruled_settings: ClassVar[frozenset[str]] = frozenset()
    native_memory_format: ClassVar[Literal["contiguous", "channels_last"]] = "contiguous"
    keeps_decoded: ClassVar[bool] = False
    reference_settings: ClassVar[Mapping[str, Any] | None] = None
    comparison_note: ClassVar[str] = ""

    @classmethod
    def unused(cls, loader: LoaderConfig) -> dict[str, str]:
        """Return those of `settings` that have no effect beside the other settings in `loader`.

        Returns:
            The reason by setting, such as {"pin_memory": "device is cpu"}.
        """
        return {}

    @classmethod
    def can_run(cls, step: Step) -> bool:
        """Whether the engine has an implementation of this step."""
        return True

    @classmethod
    def connect(cls, loader: LoaderConfig, patience: float, own: Config | None) -> LoaderParts:
        """Connect to the servers, and return the parts of a loader over them.

        Only for engines with `reads_data` false.

        Args:
            loader: Settings of this side, which name the servers.
            patience: Seconds without a message from a server after which a call fails.
            own: A config whose pipeline must be the one of the servers; None: no check.

        Raises:
            DeviceError: The device is not available.
            ServerError: A server cannot be reached, or serves something else.
        """
        raise EngineError(f"engine {cls.name} reads the data itself, and has no server")

    @classmethod
    def plan_operators(cls, job: Job, separate_files: bool) -> dict[str, list[Operator]]:
        """Return the operators that would run, for `gpupipe check`, which reads no pixel.

        Args:
            job: The steps and the loader settings, with an index that has no samples.
            separate_files: Whether each image will be a file of its own.

        Returns:
            The operators by device, in the form of `lowering`. By default none.

        Raises:
            EngineError: The engine cannot run the pipeline.
        """
        return {}

    @classmethod
    def tunable(cls, on_gpu: bool, cores: Sequence[int]) -> dict[str, list[Any]]:
        """Return the values that `gpupipe tune` tries for each setting, beside `batch_size`.

        Args:
            on_gpu: Whether the loader runs on a GPU.
            cores: Numbers of threads or workers that fit this machine.
        """
        choices = {cls.parallelism_setting: list(cores), "prefetch": [1, 2, 4]}
        return {name: values for name, values in choices.items() if name in cls.settings}

    @classmethod
    def sides(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        """Return what `gpupipe compare` measures: settings of `loader:` by title.

        Args:
            gpus: How many GPUs there are.
            workers: The numbers of worker processes to try.
        """
        return {cls.name: {}}

    @property
    def parallelism_with_unit(self) -> str:
        """The parallelism in words: "2 threads", "4 workers"."""
        return counted(self.parallelism, self.unit)

    @classmethod
    @abstractmethod
    def on(cls, job: Job, device: str) -> Engine:
        """Build the engine for a job on a device.

        Args:
            job: The samples, the steps and the loader settings.
            device: A value of `loader.device`, such as "cpu" or "gpu:0".

        Raises:
            DeviceError: The device is missing, or does not fit the settings.
            EngineError: The engine cannot run this job.
        """

    @abstractmethod
    def lowering(self) -> list[Operator]:
        """Return the operators that run, in order."""

    @property
    def skipped(self) -> int:
        """How many samples were skipped so far."""
        return 0

    @property
    def skipped_samples(self) -> Mapping[int, str]:
        """Why each sample was skipped, in one line, by its row in the index."""
        return {}

    @property
    def quarantine_file(self) -> str:
        """The path of the file that lists the skipped samples, or ""."""
        return ""

    def unmap_files(self, files: set[int]) -> None:
        """Unmap these files: they are about to be removed or replaced.

        May be called after `close`.

        Args:
            files: Positions in SpanColumn.files.
        """
        return
