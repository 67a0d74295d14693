"""decode: turn the bytes of an image file into pixels."""

from typing import Any, Literal

from gpupipe.decoders.chain import REFERENCE, DecodeOptions, DecoderChain
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError


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

    speed_advice = (
        "store images nearer to the size that is trained on, or decode on a GPU (loader.device)"
    )

    def infer_spec(self, input_spec: Spec) -> Spec:
        if not input_spec.encoded:
            raise StepIncompatibleError("the image is decoded already: remove this step")
        return Spec.of_image(3 if self.mode == "rgb" else 1, dtype=self.dtype)

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return Spec.of_image(None)

    @property
    def options(self) -> DecodeOptions:
        """The step's parameters as DecodeOptions, which a DecoderChain takes."""
        return DecodeOptions(self.mode, self.apply_exif_orientation, self.dtype)

    def lower(self, image: Primitives, p: Params) -> None:
        image.decode(self.mode, self.apply_exif_orientation, self.dtype)

    def torch(self, image: Any, p: Params) -> Any:
        """Decode a file's bytes, a 1-D uint8 tensor, to a tensor (C, H, W)."""
        return self.decode(image.numpy(), DecoderChain(REFERENCE))

    def decode(self, data: Any, decoders: DecoderChain) -> Any:
        """Decode a file's bytes, a 1-D uint8 array, to a tensor (C, H, W)."""
        import torch

        return torch.from_numpy(decoders.decode(data, self.options)).permute(2, 0, 1)
