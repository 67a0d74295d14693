"""Decodes plain PNGs with the extension `gpupipe._png`."""

from typing import Any

import numpy as np

from gpupipe.decoders.decoder import DeclinedError, Decoder, Header
from gpupipe.decoders.image_header import read_header
from gpupipe.runtime.installation import find_extension

_CHANNELS = {"rgb": 3, "gray": 1}


class Libpng(Decoder):
    """Decodes undamaged plain PNGs without profiles and transparent colours with libpng.

    The pixels are those that Pillow converts to "RGB" or "L".
    """

    place = 15
    accepts_plain_pngs = True

    def __init__(self) -> None:
        self._extension = find_extension("_png")
        if self._extension is None:
            raise ImportError("the extension gpupipe._png is off, or was not built")

    def probe(self, data: Any) -> Header | None:
        header = read_header(data)
        is_plain = header.is_plain and header.format == "PNG"
        return header if is_plain and self._extension.is_plain(data) else None

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        if out is None:
            out = np.empty((header.height, header.width, _CHANNELS[mode]), np.uint8)
        if not self._extension.decode(data, out):
            raise DeclinedError("damaged")
        return out
