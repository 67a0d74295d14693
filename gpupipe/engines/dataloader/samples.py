"""The worker's side of the DataLoader engine: turns one WorkItem into one batch.

Start reading at `Samples.__getitem__`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

# Steps use it: imported here in the parent, so that not every worker imports it.
import torchvision.transforms.v2.functional  # noqa: F401
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate

from gpupipe.annotations.batch_annotations import VALUES
from gpupipe.dataset.columns import Column, as_array, read_bytes
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import AUTO, REFERENCE, DecoderChain
from gpupipe.engines.batch import DeliveryFormat, flatten, shapes_as_tensors
from gpupipe.engines.dataloader.annotator import Annotator
from gpupipe.engines.dataloader.failed_samples import StepFailedError, for_each
from gpupipe.engines.dataloader.work_item import Recipe, WorkItem, WorkResult, list_recipes
from gpupipe.errors import DataError, EngineError, StepError
from gpupipe.pipeline.tensors import from_steps, to_steps
from gpupipe.steps.decode import Decode

if TYPE_CHECKING:
    from torch import Tensor

    from gpupipe.config import LoaderConfig
    from gpupipe.engines.base import Job


def choose_decoder(loader: LoaderConfig) -> str:
    """Return the name of the decoder that workers try first; "auto" is the reference decoder."""
    return REFERENCE if loader.decoder == AUTO else loader.decoder


class Samples(Dataset[WorkResult]):
    """A map-style dataset for torch's DataLoader: maps each WorkItem to its WorkResult.

    Args:
        job: Samples, steps and settings of the loader.
        deliver: If false, workers return only which samples failed, and no tensors: for profiling.
        cache: The decoded cache, or None.
    """

    def __init__(self, job: Job, deliver: bool = True, cache: DecodedCache | None = None) -> None:
        self._phases = [list_recipes(phase) for phase in job.list_phases()]
        self._decoders = DecoderChain(choose_decoder(job.loader), job.max_pixels)
        self._annotators = [
            Annotator(pipeline, recipes, self._decoders, cache)
            for pipeline, recipes in zip(job.pipeline.phases, self._phases, strict=True)
        ]
        self._deliver, self._cache = deliver, cache
        self._may_differ = job.loader.shapes != "equal"

    def __getitem__(self, item: WorkItem) -> WorkResult:
        try:
            result, samples = self._make(item)
        except StepFailedError as e:
            return WorkResult(error=e.error, row=e.row)
        except (DataError, EngineError, StepError) as e:
            return WorkResult(error=e)
        if not self._deliver:
            return result
        names = samples[0] if samples else ()
        shapes = {name: [tuple(sample[name].shape) for sample in samples] for name in names}
        if samples and self._may_differ:
            result.fields = {
                name + VALUES: flatten([sample[name] for sample in samples]) for name in names
            } | shapes_as_tensors(shapes)
        elif not samples or any(len(set(of_field)) > 1 for of_field in shapes.values()):
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
            rows, annotations = self._annotators[item.phase].annotate(item, rows, failed)
            item = item.select(rows)
        if annotations is not None:
            item = replace(item, parameters=dict(annotations.parameters))
        later: dict[int, str] = {}
        try:
            made = for_each(range(len(rows)), lambda n: self._sample(item, n), later)
        except StepFailedError as e:
            raise StepFailedError(e.error, rows[e.row]) from e
        failed |= {rows[n]: reason for n, reason in later.items()}
        if annotations is not None:
            annotations = annotations.select(list(made))
        result = WorkResult(failed=sorted(failed.items()), annotations=annotations)
        return result, list(made.values())

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
