"""decode: turn the bytes of an image file into pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from gpupipe.pipeline.primitives import Primitives
from gpupipe.pipeline.step import Params, Spec, Step, StepIncompatible, of_any_size


class Decode(Step):
    """Decode an image file, to the same pixels on every engine.

    docs/formats.md lists the formats.

    Attributes:
        mode: "rgb" (3 channels) or "gray" (1 channel). The default is "rgb".
        apply_exif_orientation: Rotate and mirror the image as its EXIF tag says. The default is
            false, as in torchvision and PIL.
        dtype: "uint8" or "uint16". The default is "uint8". Images of 16 bits become uint8 by
            dropping the low byte (value >> 8); images of 8 bits become uint16 by value * 257.
    """

    added_later = frozenset({"dtype"})

    mode: Literal["rgb", "gray"] = "rgb"
    apply_exif_orientation: bool = False
    dtype: Literal["uint8", "uint16"] = "uint8"

    speed_advice: ClassVar[str] = (
        "store images nearer to the size that is trained on, or decode on a GPU (loader.device)"
    )

    def infer_spec(self, input_spec: Spec) -> Spec:
        if not input_spec.encoded:
            raise StepIncompatible("the image is decoded already: remove this step")
        return Spec(encoded=False, channels=3 if self.mode == "rgb" else 1, dtype=self.dtype)

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return replace(of_any_size(input_spec), encoded=False, channels=None)

    def lower(self, image: Primitives, p: Params) -> None:
        image.decode(self.mode, self.apply_exif_orientation, self.dtype)

    def torch(self, image: Any, p: Params) -> Any:
        """Decode the file in `image`, a uint8 tensor (bytes,), to a tensor (C, H, W)."""
        return self.pixels(image.numpy())

    def pixels(self, data: Any, decoder: str = "torchvision", max_pixels: int | None = None) -> Any:
        """Decode a file with torchvision or Pillow: the reference of the primitive `decode`.

        Args:
            data: All bytes of the file, a uint8 NumPy array (bytes,).
            decoder: "torchvision" decodes plain JPEGs with torchvision and all other files with
                Pillow, since torchvision's PNG decoder crashes on damaged files. "pil" decodes all
                files with Pillow.
            max_pixels: Refuse larger images before they are decoded; None for no limit.

        Returns:
            A tensor (channels, height, width).

        Raises:
            CannotDecodeError: If the file is no image, too large, or damaged.
        """
        import torch

        from gpupipe.decoders.image_header import check_header, read_header
        from gpupipe.decoders.pillow import decode

        header = read_header(data)
        check_header(header, max_pixels)
        if decoder == "torchvision" and header.plain and header.format == "JPEG":
            return self._with_torchvision(torch.from_numpy(data))
        how = self.mode, self.dtype, self.apply_exif_orientation, max_pixels
        levels = decode(data, header.format, *how)
        return torch.from_numpy(np.array(levels.transpose(2, 0, 1), order="C"))

    def _with_torchvision(self, data: Any) -> Any:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        mode = ImageReadMode.RGB if self.mode == "rgb" else ImageReadMode.GRAY
        levels = decode_jpeg(data, mode, apply_exif_orientation=self.apply_exif_orientation)
        if self.dtype == "uint8":
            return levels
        return torch.from_numpy(levels.numpy().astype("uint16") * 257)
