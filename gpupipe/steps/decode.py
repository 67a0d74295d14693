"""decode: the bytes of an image file -> pixels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from gpupipe.pipeline.step import DaliImage, Params, Spec, Step, StepIncompatible


class Decode(Step):
    """Decode an image file, to the same pixels on every engine.

    mode: "rgb" (3 channels) or "gray" (1 channel). apply_exif_orientation: turn the image as its
    EXIF tag says. Off by default, as in torchvision and PIL (DALI's own default is on). dtype:
    "uint8", to which 16 bits become by dropping the low byte (value >> 8), or "uint16", to
      which 8 bits become by * 257. docs/formats.md has every format.
    """

    later = frozenset({"dtype"})

    mode: Literal["rgb", "gray"] = "rgb"
    apply_exif_orientation: bool = False
    dtype: Literal["uint8", "uint16"] = "uint8"

    def spec(self, given: Spec) -> Spec:
        if not given.encoded:
            raise StepIncompatible("the image is decoded already: remove this step")
        return Spec(encoded=False, channels=3 if self.mode == "rgb" else 1, dtype=self.dtype)

    def dali(self, image: DaliImage, p: Params) -> None:
        image.decode(self.mode, self.apply_exif_orientation, self.dtype)

    def torch(self, image: Any, p: Params) -> Any:
        """image: uint8 tensor (bytes,)."""
        return self.pixels(image.numpy())

    def pixels(self, data: Any, decoder: str = "torchvision", max_pixels: int | None = None) -> Any:
        """The pixels of a file on a CPU, without DALI.

        Args:
            data: All of its bytes, a NumPy array (bytes,) of uint8.
            decoder: "torchvision", for plain JPEGs, with Pillow for all others, or "pil".
                torchvision is given nothing else: its PNG decoder crashes on damaged files.
            max_pixels: Refuse an image of more, before it is decoded; None: no limit.

        Returns:
            A tensor (channels, height, width).

        Raises:
            CannotDecode: It is no image, too large, or damaged.
        """
        import torch

        from gpupipe.formats.image_header import read_header
        from gpupipe.formats.pillow_decoder import check_header, decode

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
