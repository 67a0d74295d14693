"""decode: the bytes of an image file -> pixels."""

from __future__ import annotations

from typing import Any, Literal

from gpupipe.step import DaliImage, Params, Refused, Spec, Step


class Decode(Step):
    """Decode an image file to uint8, as torchvision.io.decode_image does.

    mode: "rgb" (3 channels) or "gray" (1 channel).
    apply_exif_orientation: turn the image as its EXIF tag says. Off by default, as in torchvision and PIL (DALI's own default is on).
    """

    mode: Literal["rgb", "gray"] = "rgb"
    apply_exif_orientation: bool = False

    def spec(self, given: Spec) -> Spec:
        if not given.encoded:
            raise Refused("the image is decoded already: remove this step")
        return Spec(encoded=False, channels=3 if self.mode == "rgb" else 1)

    def dali(self, image: DaliImage, p: Params) -> None:
        image.decode(self.mode, self.apply_exif_orientation)

    def torch(self, image: Any, p: Params) -> Any:
        """image: uint8 tensor (bytes,)."""
        from torchvision.io import ImageReadMode, decode_image

        mode = ImageReadMode.RGB if self.mode == "rgb" else ImageReadMode.GRAY
        return decode_image(image, mode=mode, apply_exif_orientation=self.apply_exif_orientation)
