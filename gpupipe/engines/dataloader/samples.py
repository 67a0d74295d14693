"""What a DataLoader worker does: files and draws in, one batch out.

Nothing here draws, and nothing here knows the data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

# which steps use: imported once here, and not in every worker
import torchvision.transforms.v2.functional  # noqa: F401
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate

from gpupipe.dataset.byte_range import Span
from gpupipe.errors import EngineError, StepError
from gpupipe.formats.pillow_decoder import CannotDecode
from gpupipe.pipeline.axes import from_steps, to_steps
from gpupipe.pipeline.pipeline import Entry
from gpupipe.runtime.machine_failures import machine_failure
from gpupipe.steps.decode import Decode

if TYPE_CHECKING:
    from torch import Tensor

Decoder = Literal["torchvision", "pil"]


@dataclass(frozen=True)
class SampleLocation:
    """Where one field of a sample is; shape: of an array, None of an image file."""

    span: Span
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class WorkItem:
    """A batch to be made. places: of each field of each sample, in the order of the recipes.

    parameters: by recipe and step, arrays (B, ...) by name.
    """

    places: list[list[SampleLocation]]
    parameters: list[list[dict[str, NDArray[Any]]]]

    def sample(self, place: int) -> WorkItem:
        """Return the work of one sample."""
        parameters = [
            [{n: v[place : place + 1] for n, v in p.items()} for p in of_field]
            for of_field in self.parameters
        ]
        return WorkItem([[places[place]] for places in self.places], parameters)


@dataclass(frozen=True)
class Recipe:
    """What is done to a field. stored, layout: the dtype and the axes of its arrays; stored is None
    of image files. dtype: what it is delivered as, where that is not what the steps make."""

    name: str
    steps: list[Entry]
    stored: str | None = None
    layout: str = "CHW"
    dtype: str | None = None
    channels_last: bool = False


@dataclass
class WorkResult:
    """What became of it. fields: (B, ...) of the samples that are not in `failed`; None where there
    is none, or where they differ in shape. failed: (place in the batch, what went wrong). shapes:
    of those that did not fail, as they are delivered, by field; empty where `fields` holds them.
    """

    fields: dict[str, Tensor] | None = None
    failed: list[tuple[int, str]] = field(default_factory=list)
    shapes: list[dict[str, tuple[int, ...]]] = field(default_factory=list)
    error: EngineError | StepError | None = None
    """What ends the run, and costs no sample."""

    def pin_memory(self) -> WorkResult:
        """What DataLoader's pinning thread calls."""
        return (
            self
            if self.fields is None
            else WorkResult(
                {name: t.pin_memory() for name, t in self.fields.items()}, self.failed, self.shapes
            )
        )


class Samples(Dataset[WorkResult]):
    """A map-style data set whose indices are batches of work.

    deliver: whether what is made is also returned.
    """

    def __init__(
        self,
        recipes: Sequence[Recipe],
        decoder: Decoder,
        deliver: bool = True,
        max_pixels: int | None = None,
    ) -> None:
        self._recipes, self._decoder, self._deliver = list(recipes), decoder, deliver
        self._max_pixels = max_pixels

    def __getitem__(self, work: WorkItem) -> WorkResult:
        made, samples = WorkResult(), []
        for place in range(len(work.places[0])):
            try:
                samples.append(self._sample(work, place))
            except (EngineError, StepError) as e:
                return WorkResult(error=e)
            except (OSError, RuntimeError, ValueError, MemoryError) as e:
                if what := machine_failure(e):
                    return WorkResult(error=EngineError(what))
                made.failed.append((place, _said(e)))
        if not self._deliver:
            return made
        shapes = [{name: tuple(t.shape) for name, t in sample.items()} for sample in samples]
        if not samples or any(s != shapes[0] for s in shapes):
            made.shapes = (
                shapes  # a message below 16 KiB is one write, which no death can cut in two
            )
        else:
            made.fields = {
                r.name: self._stacked([s[r.name] for s in samples], r) for r in self._recipes
            }
        return made

    def _stacked(self, tensors: list[Tensor], recipe: Recipe) -> Tensor:
        if not recipe.channels_last:
            # of tensors it makes a tensor
            return default_collate(tensors)  # type: ignore[no-any-return]
        batch: Tensor = default_collate([t.permute(1, 2, 0).contiguous() for t in tensors])
        return batch.permute(0, 3, 1, 2)

    def _sample(self, work: WorkItem, place: int) -> dict[str, Tensor]:
        found = {}
        for recipe, places, parameters in zip(
            self._recipes, work.places, work.parameters, strict=True
        ):
            found[recipe.name] = self._field(
                recipe, places[place], [{n: v[place] for n, v in p.items()} for p in parameters]
            )
        return found

    def _field(
        self, recipe: Recipe, place: SampleLocation, parameters: list[dict[str, Any]]
    ) -> Tensor:
        steps = list(zip(recipe.steps, parameters, strict=False))
        if recipe.stored is not None:
            image = to_steps(
                torch.from_numpy(place.span.read().view(recipe.stored).reshape(place.shape)),
                recipe.layout,
            )
        elif not steps:
            return _bytes(place.span)
        else:
            first, p = steps.pop(0)
            image = self._decoded(first, _bytes(place.span), p)
        for entry, p in steps:
            image = entry.torch(image, p)
        image = image if recipe.stored is None else from_steps(image, recipe.layout)
        image = image if recipe.dtype is None else image.to(getattr(torch, recipe.dtype))
        return image.contiguous()

    def _decoded(self, entry: Entry, data: Tensor, p: dict[str, Any]) -> Tensor:
        """What the first step makes of a file.

        Raises CannotDecode for all that a decoder raises.
        """
        if not isinstance(entry.step, Decode):
            return entry.torch(data, p)  # type: ignore[no-any-return]  # a plugin's decoder
        try:
            # a tensor
            image: Tensor = entry.step.pixels(data.numpy(), self._decoder, self._max_pixels)
            return image
        except (CannotDecode, MemoryError, DeprecationWarning):  # the last is no file's fault
            raise
        except Exception as e:
            if machine_failure(e):
                raise
            raise CannotDecode(str(e) or type(e).__name__) from e


def _bytes(span: Span) -> Tensor:
    """The bytes of a sample, uint8 (bytes,). Raises OSError, ValueError."""
    data = span.read()
    if not len(data):
        raise ValueError("the file is empty")
    return torch.from_numpy(data)


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
