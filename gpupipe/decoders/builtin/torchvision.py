"""Decodes JPEGs with torchvision, which is always installed."""

from typing import Any

import torch

from gpupipe.decoders.decoder import Decoder, Header
from gpupipe.decoders.image_header import read_plain_jpeg
from gpupipe.runtime.installation import import_torchvision


class Torchvision(Decoder):
    """Decodes plain JPEGs with torchvision (libjpeg-turbo), as the reference of the step `decode`.

    torchvision's decoders are deprecated since 0.29, in favour of torchcodec's. torchvision's PNG
    decoder is not used, because it ends the process on damaged files.
    """

    place = 40

    def __init__(self) -> None:
        import_torchvision()
        from torchvision.io import ImageReadMode, decode_jpeg

        self._decode = decode_jpeg
        self._modes = {"rgb": ImageReadMode.RGB, "gray": ImageReadMode.GRAY}

    def probe(self, data: Any) -> Header | None:
        return read_plain_jpeg(data)

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        pixels = self._decode(torch.from_numpy(data), self._modes[mode])
        return pixels.permute(1, 2, 0).numpy()
