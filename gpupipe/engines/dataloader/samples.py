"""The worker's side of the DataLoader engine: turns one WorkItem into one batch.

A work item holds columns and drawn parameters, so a worker needs neither the index nor
random numbers. Start reading at `Samples.__getitem__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

# Steps use it: imported here in the parent, so that not every worker imports it.
import torchvision.transforms.v2.functional  # noqa: F401
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate

from gpupipe.annotations.batch_annotations import VALUES, BatchAnnotations
from gpupipe.annotations.rows import UNKNOWN, AnnotationRows, find_orientations
from gpupipe.dataset.columns import Column, as_array, read_bytes
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import AUTO, REFERENCE, DecoderChain, EncodedImage
from gpupipe.engines.batch import DeliveryFormat, flatten, shapes_as_tensors
from gpupipe.errors import EngineError, StepError, describe_error
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.runtime.failures import is_foreign, machine_failure
from gpupipe.steps.decode import Decode

if TYPE_CHECKING:
    from torch import Tensor

    from gpupipe.config import LoaderConfig
    from gpupipe.engines.base import Job
    from gpupipe.sampling.sampler import Plan

_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkItem:
    """One batch of work for a worker.

    Attributes:
        columns: One column for each field of the pipeline, with a row for each sample of the batch.
        parameters: Drawn parameters of each field and view, as parameters[field][step][name]:
            arrays (B, ...).
        phase: The position in Pipeline.phases of the pipeline that makes the batch.
        annotations: The boxes and points of the samples; None if the data has none.
        opened: The image files that the worker has opened already, by field and row.
    """

    columns: list[Column]
    parameters: dict[str, list[dict[str, NDArray[Any]]]]
    phase: int = 0
    annotations: AnnotationRows | None = None
    opened: dict[tuple[str, int], EncodedImage] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Job, plan: Plan) -> WorkItem:
        """Return the work item of a plan. Raises StepError if the code of a step fails."""
        columns = [job.index.columns[name].take(plan.ids) for name in job.pipeline.fields]
        parameters = {
            name: [step.parameters for step in steps] for name, steps in job.steps_for(plan).items()
        }
        annotations = None
        if job.pipeline.annotations:
            annotations = AnnotationRows.of(job.index, job.pipeline, plan.ids)
        return cls(columns, parameters, job.pipeline.phase_of(plan.epoch), annotations)

    def select(self, rows: list[int]) -> WorkItem:
        """Return a work item with only the samples in some rows of the batch."""
        parameters = {
            name: [{n: v[rows] for n, v in p.items()} for p in of_field]
            for name, of_field in self.parameters.items()
        }
        columns = [column.take(np.array(rows, np.int64)) for column in self.columns]
        annotations = self.annotations and self.annotations.select(rows)
        opened = {
            (name, n): self.opened[name, row]
            for name in {name for name, _ in self.opened}
            for n, row in enumerate(rows)
            if (name, row) in self.opened
        }
        return WorkItem(columns, parameters, self.phase, annotations, opened)


@dataclass(frozen=True)
class Recipe:
    """How a worker makes one field.

    Attributes:
        name: Name of the field.
        steps: Steps to apply, in order; the first step of an image file decodes it. If an image
            file has no steps, its bytes are delivered.
        format: How the field is delivered.
        views: How to make each view of this field from the output of `steps`. If the field has
            views, they are delivered in its place.
    """

    name: str
    steps: list[Entry]
    format: DeliveryFormat
    views: tuple[Recipe, ...] = ()

    @property
    def outputs(self) -> tuple[Recipe, ...]:
        """The recipes whose outputs are delivered: the views, or this recipe if there are none."""
        return self.views or (self,)

    @property
    def runs_foreign_steps(self) -> bool:
        """Whether a step comes from another package. Such a step may change its input in place."""
        steps = (entry.step for recipe in (self, *self.views) for entry in recipe.steps)
        return any(is_foreign(type(step)) for step in steps)


def choose_decoder(loader: LoaderConfig) -> str:
    """Return the name of the decoder that workers try first; "auto" is the reference decoder."""
    return REFERENCE if loader.decoder == AUTO else loader.decoder


def _list_recipes(job: Job) -> list[Recipe]:
    """Return the recipe of each field of a job."""

    def create(name: str, views: tuple[Recipe, ...] = ()) -> Recipe:
        return Recipe(name, job.pipeline.entries_on(name), DeliveryFormat.of(job, name), views)

    return [
        create(name, tuple(create(view) for view in job.pipeline.views_of(name)))
        for name in job.pipeline.fields
    ]


@dataclass
class WorkResult:
    """What a worker returns for a WorkItem: the batch, and which samples failed.

    Attributes:
        fields: Tensors (B, ...) of the samples that did not fail. None if all samples failed, if
            their shapes differ, or if the Samples were created with `deliver=False`.
        failed: For each sample that failed: its position in the batch, and the reason.
        shapes: Shapes of each sample that did not fail, by field, if the shapes differ; else empty.
        error: An error that ends the iteration, because no sample caused it.
        row: The position in the batch of the sample at which the code of a step failed, if known.
        annotations: The boxes and points of the samples that did not fail; None without any.
    """

    fields: dict[str, Tensor] | None = None
    failed: list[tuple[int, str]] = field(default_factory=list)
    shapes: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    error: EngineError | StepError | None = None
    row: int | None = None
    annotations: BatchAnnotations | None = None

    def pin_memory(self) -> WorkResult:
        """Pin the tensors, and return the result; torch's pinning thread calls this."""
        if self.fields is not None:
            self.fields = {name: tensor.pin_memory() for name, tensor in self.fields.items()}
        return self


class Samples(Dataset[WorkResult]):
    """A map-style dataset for torch's DataLoader: maps each WorkItem to its WorkResult.

    Args:
        job: Samples, steps and settings of the loader.
        deliver: If false, workers return only which samples failed, and no tensors: for profiling.
        cache: The decoded cache, or None.
    """

    def __init__(self, job: Job, deliver: bool = True, cache: DecodedCache | None = None) -> None:
        self._phases = [_list_recipes(phase) for phase in job.list_phases()]
        self._pipelines = job.pipeline.phases
        self._decoders = DecoderChain(choose_decoder(job.loader), job.max_pixels)
        self._deliver, self._cache = deliver, cache
        self._may_differ = job.loader.shapes != "equal"

    def __getitem__(self, item: WorkItem) -> WorkResult:
        try:
            result, samples = self._make(item)
        except _StepFailedError as e:
            return WorkResult(error=e.error, row=e.row)
        except (EngineError, StepError) as e:
            return WorkResult(error=e)
        if not self._deliver:
            return result
        shapes = [{name: tuple(t.shape) for name, t in sample.items()} for sample in samples]
        if samples and self._may_differ:
            result.fields = {
                name + VALUES: flatten([sample[name] for sample in samples]) for name in shapes[0]
            } | shapes_as_tensors(shapes)
        elif not samples or any(s != shapes[0] for s in shapes):
            # Only the shapes, because a message below 16 KiB is a single write: it stays whole even
            # if the worker is killed.
            result.shapes = shapes
        else:
            result.fields = {
                r.name: self._stack([s[r.name] for s in samples], r)
                for recipe in self._phases[item.phase]
                for r in recipe.outputs
            }
        return result

    def _make(self, item: WorkItem) -> tuple[WorkResult, list[dict[str, Tensor]]]:
        """Return the samples that can be made, and a result that says which failed."""
        rows, failed = list(range(len(item.columns[0]))), dict[int, str]()
        annotations = None
        if item.annotations is not None:
            rows, annotations = self._annotate(item, rows, failed)
            item = item.select(rows)
        if annotations is not None:
            item = replace(item, parameters=dict(annotations.parameters))
        later: dict[int, str] = {}
        try:
            made = _for_each(range(len(rows)), lambda n: self._sample(item, n), later)
        except _StepFailedError as e:
            raise _StepFailedError(e.error, rows[e.row]) from e
        failed |= {rows[n]: reason for n, reason in later.items()}
        if annotations is not None:
            annotations = annotations.select(list(made))
        result = WorkResult(failed=sorted(failed.items()), annotations=annotations)
        return result, list(made.values())

    def _annotate(
        self, item: WorkItem, rows: list[int], failed: dict[int, str]
    ) -> tuple[list[int], BatchAnnotations | None]:
        """Move the annotations of the samples through all steps, before any image is decoded.

        Args:
            item: The work item. Its image files are opened.
            rows: The samples.
            failed: The function adds why samples failed, by row.

        Returns:
            The samples that did not fail, and their annotations; None if all failed.
        """
        sizes = _for_each(rows, lambda row: self._find_sizes(item, row), failed)
        pipeline = self._pipelines[item.phase]

        def annotate(rows: list[int]) -> BatchAnnotations:
            part = item.select(rows)
            assert part.annotations is not None
            steps = {
                name: list(zip(pipeline.entries_on(name), drawn, strict=True))
                for name, drawn in part.parameters.items()
            }
            of_part = {
                name: np.array([sizes[row][name] for row in rows], np.float64)
                for name in next(iter(sizes.values()))
            }
            known = {
                name: [
                    part.opened[name, n].header.orientation if (name, n) in part.opened else UNKNOWN
                    for n in range(len(rows))
                ]
                for name in of_part
            }
            columns = dict(zip(pipeline.fields, part.columns, strict=True))
            turned = find_orientations(pipeline, columns, np.arange(len(rows)), known)
            return part.annotations.annotate(pipeline, steps, of_part, turned)

        rows = list(sizes)
        try:
            return rows, annotate(rows) if rows else None
        except SampleIncompatibleError:
            rows = list(_for_each(rows, lambda row: annotate([row]), failed))
            return rows, annotate(rows) if rows else None

    def _find_sizes(self, item: WorkItem, row: int) -> dict[str, tuple[int, ...]]:
        """Return [height, width] of each image of a sample after decoding, by field."""
        sizes: dict[str, tuple[int, ...]] = {}
        for recipe, column in zip(self._phases[item.phase], item.columns, strict=True):
            first = recipe.steps[0].step if recipe.steps else None
            if column.array is not None:
                layout, shape = recipe.format.layout or "", column.array.shape_of(row)
                axes = [layout.index(axis) for axis in "HW" if axis in layout]
                sizes[recipe.name] = tuple(shape[axis] for axis in axes)
            elif isinstance(first, Decode):
                sizes[recipe.name] = self._find_size(recipe.name, first, column, row, item)
        return sizes

    def _find_size(
        self, name: str, step: Decode, column: Column, row: int, item: WorkItem
    ) -> tuple[int, ...]:
        if self._cache is not None and name in self._cache.prefixes:
            (cached,) = self._cache.get(name, column, [row])
            if cached.pixels is not None:
                return cached.size
        image = self._decoders.open(read_bytes(column, row), step.options)
        item.opened[name, row] = image
        return image.size

    def _stack(self, tensors: list[Tensor], recipe: Recipe) -> Tensor:
        if not recipe.format.channels_last:
            return default_collate(tensors)  # type: ignore[no-any-return]
        batch: Tensor = default_collate([t.permute(1, 2, 0).contiguous() for t in tensors])
        return batch.permute(0, 3, 1, 2)

    def _sample(self, item: WorkItem, row: int) -> dict[str, Tensor]:
        fields = {}
        for recipe, column in zip(self._phases[item.phase], item.columns, strict=True):
            image = self._field(recipe, column, row, item)
            for output in recipe.outputs:
                result = image if output is recipe else _run_steps(output, image, row, item)
                fields[output.name] = _finish(result, output.format)
        return fields

    def _field(self, recipe: Recipe, column: Column, row: int, item: WorkItem) -> Tensor:
        """Read a field of one sample, and run its steps; use the field's decoded cache, if any."""
        if self._cache is None or recipe.name not in self._cache.prefixes:
            image = self._decode(recipe, column, row, item)
            return _run_steps(recipe, image, row, item, int(column.array is None))
        count = len(self._cache.prefixes[recipe.name].entries)
        (cached,) = self._cache.get(recipe.name, column, [row])
        if cached.pixels is not None:
            image = torch.from_numpy(cached.pixels).permute(2, 0, 1)
            image = image.clone() if recipe.runs_foreign_steps else image
        else:
            decoded = self._decode(recipe, column, row, item)
            height, width = decoded.shape[1:]
            image = _run_steps(recipe, decoded, row, item, 1, count)
            self._cache.store(cached, image.permute(1, 2, 0).numpy(), (height, width))
        return _run_steps(recipe, image, row, item, count)

    def _decode(self, recipe: Recipe, column: Column, row: int, item: WorkItem) -> Tensor:
        """Read a field of one sample: return a stored array, or an image after the first step.

        If an image file has no steps, return its bytes.

        Raises:
            OSError, ValueError: The sample cannot be read or decoded.
            EngineError: A column raised an exception that its contract forbids.
        """
        opened = item.opened.pop((recipe.name, row), None)
        if opened is not None and isinstance(step := recipe.steps[0].step, Decode):
            return torch.from_numpy(opened.decode(step.options)).permute(2, 0, 1)
        data = read_bytes(column, row)
        if column.array is not None and recipe.format.layout is not None:
            array = as_array(data, column.array, row)
            return to_steps(torch.from_numpy(array), recipe.format.layout)
        if not recipe.steps:
            return torch.from_numpy(data)
        first = recipe.steps[0]
        if isinstance(first.step, Decode):
            image: Tensor = first.step.decode(data, self._decoders)
            return image
        parameters = _select_row(item.parameters[recipe.name][0], row)
        return first.torch(torch.from_numpy(data), parameters)  # type: ignore[no-any-return]


class _StepFailedError(Exception):
    """The code of a step failed at the sample in `row`."""

    def __init__(self, error: StepError, row: int) -> None:
        super().__init__(str(error))
        self.error, self.row = error, row


def _for_each(
    rows: Iterable[int], make: Callable[[int], _T], failed: dict[int, str]
) -> dict[int, _T]:
    """Return `make(row)` for each row that does not fail; add to `failed` why the others did.

    Raises:
        EngineError: No sample is to blame.
        _StepFailedError: The code of a step failed.
    """
    results = {}
    for row in rows:
        try:
            results[row] = make(row)
        except StepError as e:
            raise _StepFailedError(e, row) from e
        except EngineError:
            raise
        except (OSError, RuntimeError, ValueError, MemoryError) as e:
            if failure := machine_failure(e):
                raise EngineError(failure) from e
            failed[row] = describe_error(e)
    return results


def _run_steps(
    recipe: Recipe, image: Tensor, row: int, item: WorkItem, first: int = 0, end: int | None = None
) -> Tensor:
    """Run the steps `recipe.steps[first:end]` on the image of row `row`."""
    steps = zip(recipe.steps[first:end], item.parameters[recipe.name][first:end], strict=False)
    for entry, parameters in steps:
        image = entry.torch(image, _select_row(parameters, row))
    return image


def _select_row(parameters: dict[str, NDArray[Any]], row: int) -> dict[str, Any]:
    return {name: values[row] for name, values in parameters.items()}


def _finish(image: Tensor, format: DeliveryFormat) -> Tensor:
    """Convert an image to the axis order and the dtype in which it is delivered."""
    image = image if format.layout is None else from_steps(image, format.layout)
    image = image if format.dtype is None else image.to(getattr(torch, format.dtype))
    return image.contiguous()


@contextmanager
def limit_to_one_thread() -> Iterator[None]:
    """Limit torch's operators to one thread, as torch does in workers; then restore the number.

    OpenMP's threads wait for each other in every operator. On two cores with another busy process,
    that takes 20 times as long as the work. Changing the number costs less than a microsecond, and
    affects only the calling thread. But a thread that runs its first torch operator in this context
    keeps the limit of one thread for good.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
