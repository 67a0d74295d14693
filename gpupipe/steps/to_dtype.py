"""to_dtype: another number type, with or without scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from gpupipe.step import FLOATS, DaliImage, Params, Spec, Step, decoded


class ToDtype(Step):
    """torchvision.transforms.v2.ToDtype.

    dtype: "float32", "float16" or "uint8". (For a bfloat16 batch, set loader.dtype.)
    scale: map 0..255 to 0..1 when going from uint8 to a float, and back.
    """

    dtype: Literal["float32", "float16", "uint8"]
    scale: bool = False

    def spec(self, given: Spec) -> Spec:
        return replace(decoded(given), dtype=self.dtype)

    def dali(self, image: DaliImage, p: Params) -> None:
        image.to_dtype(self.dtype, self.scale and (image.spec.dtype in FLOATS) != (self.dtype in FLOATS))

    def torch(self, image: Any, p: Params) -> Any:
        import torch
        from torchvision.transforms.v2 import functional as F

        return F.to_dtype(image, getattr(torch, self.dtype), scale=self.scale)
