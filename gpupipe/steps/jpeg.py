"""jpeg: compress as JPEG and decode again, with drawn quality."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.step import Params
from gpupipe.schema.field_types import WHOLE, check_list, check_ordered, is_number


def _quality(value: Any) -> Any:
    words = "a whole number from 1 to 100, or [least, most]"
    return [value, value] if is_number(value) else check_list(value, (2,), words)


Percent = Annotated[int, Field(ge=1, le=100), WHOLE]
Quality = Annotated[
    tuple[Percent, Percent], BeforeValidator(_quality), AfterValidator(check_ordered)
]


class Jpeg(ColorStep):
    """Compress as JPEG and decode again, as torchvision.transforms.v2.JPEG.

    The input must be an image of 1 or 3 channels of uint8. On a CPU the pixels are those of
    torchvision. On a GPU, DALI simulates the codec, and pixels differ from those of a CPU.

    Attributes:
        quality: The quality, 1 to 100: one number, or [least, most], from which a whole number is
            drawn; both ends are possible.
    """

    quality: Quality

    example: ClassVar[Mapping[str, Any]] = {"quality": [2, 30]}
    num_uniforms: ClassVar[int] = 1
    op: ClassVar[str] = "jpeg"

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return quality: int32 (B,)."""
        least, most = self.quality
        return {"quality": (least + np.floor(u[:, 0] * (most - least + 1))).astype(np.int32)}

    def op_values(self, p: Params) -> tuple[Any, ...]:
        return (p["quality"],)

    def torch_color(self, image: Any, p: Params) -> Any:
        """Use Pillow, whose pixels are torchvision's: torchvision deprecates its own encoder."""
        import torch
        from PIL import Image

        pixels = image.permute(1, 2, 0).cpu().numpy()
        encoded = io.BytesIO()
        picture = Image.fromarray(pixels[..., 0] if len(image) == 1 else pixels)
        picture.save(encoded, "JPEG", quality=int(p["quality"]))
        decoded = np.array(Image.open(encoded)).reshape(pixels.shape)
        return torch.from_numpy(decoded).permute(2, 0, 1).to(image.device)
