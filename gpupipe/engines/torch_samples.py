"""What a DataLoader worker does: files and draws in, one batch out. Nothing here draws, and nothing here knows the data set."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
import torchvision.transforms.v2.functional  # noqa: F401  # which steps use: imported once here, and not in every worker
from numpy.typing import NDArray
from torch.utils.data import Dataset, default_collate

from gpupipe.span import Span
from gpupipe.step import Step

if TYPE_CHECKING:
    from torch import Tensor

Decoder = Literal["torchvision", "pil"]


@dataclass(frozen=True)
class Work:
    """A batch to be made. parameters: for each step its parameters, arrays (B, ...) by name."""

    spans: list[Span]
    parameters: list[dict[str, NDArray[Any]]]


@dataclass
class Made:
    """What became of it. image: (B, C, H, W) of the samples that are not in `failed`; None where there is none, or where they
    differ in size. failed: (place in the batch, what went wrong). shapes: (height, width) of those that did not fail."""

    image: Tensor | None = None
    failed: list[tuple[int, str]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def pin_memory(self) -> Made:
        """What DataLoader's pinning thread calls."""
        return self if self.image is None else Made(self.image.pin_memory(), self.failed, self.shapes)


class Samples(Dataset[Made]):
    """A map-style data set whose indices are batches of work. deliver: whether what is made is also returned."""

    def __init__(self, steps: Sequence[Step], decoder: Decoder, dtype: str | None, memory_format: str, deliver: bool = True) -> None:
        self._deliver = deliver
        self._steps, self._decoder, self._channels_last = list(steps), decoder, memory_format == "channels_last"
        self._dtype = getattr(torch, dtype) if dtype else None

    def __getitem__(self, work: Work) -> Made:
        made, images = Made(), []
        for place, span in enumerate(work.spans):
            try:
                images.append(self._image(span, [{n: v[place] for n, v in p.items()} for p in work.parameters]))
            except (OSError, RuntimeError, ValueError) as e:
                made.failed.append((place, _said(e)))
        if not self._deliver:
            return made
        made.shapes = [tuple(i.shape[:2] if self._channels_last else i.shape[1:]) for i in images]
        if len(set(made.shapes)) == 1:
            batch = default_collate(images)
            made.image = batch.permute(0, 3, 1, 2) if self._channels_last else batch
        return made

    def _image(self, span: Span, parameters: list[dict[str, Any]]) -> Tensor:
        if not self._steps:
            return _bytes(span)
        first, *rest = self._steps
        image = _with_pil(span, first) if self._decoder == "pil" else first.torch(_bytes(span), parameters[0])
        for step, p in zip(rest, parameters[1:], strict=True):
            image = step.torch(image, p)
        image = image if self._dtype is None else image.to(self._dtype)
        image = image.permute(1, 2, 0) if self._channels_last else image
        return image.contiguous()


def _bytes(span: Span) -> Tensor:
    """The bytes of a sample, uint8 (bytes,). Raises OSError, ValueError."""
    data = span.read()
    if not len(data):
        raise ValueError("the file is empty")
    return torch.from_numpy(data)


def _with_pil(span: Span, decode: Any) -> Any:
    """What the step `decode` makes of a file, with Pillow's decoder. Raises OSError, ValueError."""
    from PIL import Image, ImageOps
    from torchvision.transforms.v2 import functional as F

    with Image.open(io.BytesIO(span.read().tobytes())) as opened:
        image: Any = ImageOps.exif_transpose(opened) if decode.apply_exif_orientation else opened
        return F.pil_to_tensor(image.convert("RGB" if decode.mode == "rgb" else "L"))


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
