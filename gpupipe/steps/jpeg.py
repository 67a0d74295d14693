"""jpeg: compress as JPEG and decode again, with drawn quality."""

from __future__ import annotations

import io
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from gpupipe.augment.color_step import ColorStep
from gpupipe.pipeline.step import Params, Sampled, Uniforms
from gpupipe.schema.field_types import ORDERED, WHOLE, one_for_both

Percent = Annotated[int, Field(ge=1, le=100), WHOLE]
Quality = Annotated[
    tuple[Percent, Percent], one_for_both("a whole number from 1 to 100, or [min, max]"), ORDERED
]


class Jpeg(ColorStep):
    """Compress as JPEG and decode again, as torchvision.transforms.v2.JPEG.

    The input must be an image of 1 or 3 channels of uint8. On a CPU the pixels are those of
    torchvision. On a GPU, DALI simulates the codec, and pixels differ from those of a CPU.

    Attributes:
        quality: The quality, 1 to 100: one number, or [min, max], from which a whole number is
            drawn; both ends are possible.
    """

    quality: Quality

    example = {"quality": [2, 30]}
    num_uniforms = 1
    op = "jpeg"

    def sample(self, u: Uniforms) -> Sampled:
        """Return quality: int32 (B,)."""
        low, high = self.quality
        return {"quality": (low + np.floor(u[:, 0] * (high - low + 1))).astype(np.int32)}

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
