"""What a function of the user's returns for each image: declared, or learned from drawn images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, Field, PrivateAttr

from gpupipe.dataset.spec import FLOATS, Spec, Values
from gpupipe.formats.npy import DTYPES
from gpupipe.schema.field_types import WHOLE, Size, should_be

_TRIAL_SIDES = ((240, 320), (256, 192))
"""[height, width] of the drawn images, along axes that may differ between images."""


def _check_dtype(value: str) -> str:
    if value not in (*DTYPES, "bfloat16"):
        raise should_be(f"one of {', '.join((*DTYPES, 'bfloat16'))}")
    return value


class Returns(pydantic.BaseModel):
    """What a function returns, if it is not what it gets.

    Attributes:
        dtype: The name of the dtype; null for that of the input.
        channels: The number of channels; null for that of the input.
        size: [height, width] in pixels, one number for a square, or "any" for sizes that differ
            between images; null for that of the input.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    dtype: Annotated[str, AfterValidator(_check_dtype)] | None = None
    channels: Annotated[int, Field(ge=1, le=1024), WHOLE] | None = None
    size: Size | Literal["any"] | None = None
    _values: Values = PrivateAttr("usual")
    """The range of floats that are made from integers."""

    def apply_to(self, spec: Spec) -> Spec:
        """Return the spec of what the function returns for inputs of `spec`."""
        output = spec
        if self.dtype is not None and self.dtype != spec.dtype:
            values = self._values if self.dtype in (*FLOATS, "float64") else "usual"
            output = replace(spec.with_values(values), dtype=self.dtype)
        if self.channels is not None:
            output = output.with_channels(self.channels)
        if self.size == "any":
            return output.with_size([None] * len(spec.space))
        return output if self.size is None else output.with_size(self.size)

    @classmethod
    def of_outputs(
        cls, input_spec: Spec, images: Sequence[Any], outputs: Sequence[Any]
    ) -> "Returns":
        """Return what a function returns, from its outputs for two drawn images."""
        first = outputs[0]
        dtype = str(first.dtype).removeprefix("torch.")
        space = len(input_spec.space)
        channels = first.shape[-1 - space]
        sides = [tuple(o.shape[-space:]) for o in outputs] if space else []
        size: Any = None
        if any(s != tuple(i.shape[-space:]) for s, i in zip(sides, images, strict=False)):
            size = sides[0] if sides[0] == sides[1] else "any"
        kept = input_spec.channels if "C" in input_spec.layout else 1
        returns = cls.model_construct(
            dtype=None if dtype == input_spec.dtype else dtype,
            channels=None if channels == kept else channels,
            size=size,
        )
        if first.is_floating_point():
            low, high = float(first.min()), float(first.max())
            returns._values = "normalized" if low < 0 else "unscaled" if high > 1.5 else "usual"
        return returns


def draw_images(spec: Spec) -> list[Any]:
    """Return two drawn tensors of a spec, of different sizes where sizes may differ."""
    return [_draw(spec, sides) for sides in _TRIAL_SIDES]


def _draw(spec: Spec, sides: tuple[int, int]) -> Any:
    """Return a drawn tensor of a spec; `sides` are the sizes along axes that may differ."""
    import torch

    shape = [
        n if n is not None else 3 if axis == "C" else sides[axis != "H"]
        for axis, n in zip(spec.canonical.layout, spec.canonical_sizes, strict=True)
    ]
    shape = [
        max(n, least) if n in sides and space is None else n
        for n, least, space in zip(
            shape,
            [1] * (len(shape) - len(spec.at_least)) + list(spec.at_least),
            spec.canonical_sizes,
            strict=True,
        )
    ]
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.rand(shape, generator=generator).to(dtype)
    high = (
        2 if spec.kind == "mask" or spec.dtype == "bool" else 127 if spec.dtype == "int8" else 256
    )
    return torch.randint(0, high, shape, generator=generator).to(dtype)
