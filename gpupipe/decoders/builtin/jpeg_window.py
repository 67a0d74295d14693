"""Decodes a window of a JPEG with the extension `gpupipe._jpeg`."""

from typing import Any

import numpy as np

from gpupipe.decoders.decoder import DeclinedError, Decoder, Header
from gpupipe.decoders.image_header import read_plain_jpeg
from gpupipe.runtime.installation import find_extension

_CHANNELS = {"rgb": 3, "gray": 1}


class JpegWindow(Decoder):
    """Decodes undamaged plain JPEGs of one scan with libjpeg-turbo, whole or only a window.

    Inside the window, the pixels equal those of a decode of the whole image.
    """

    place = 10
    accepts_plain_jpegs = True

    def __init__(self) -> None:
        self._extension = find_extension("_jpeg")
        if self._extension is None:
            raise ImportError("the extension gpupipe._jpeg is off, or was not built")

    def probe(self, data: Any) -> Header | None:
        header = read_plain_jpeg(data)
        return header if header is not None and header.end else None

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        height, width = header.height, header.width
        if out is None:
            out = np.empty((height, width, _CHANNELS[mode]), np.uint8)
        if not self._extension.decode(data, out, *(window or (0, 0, height, width))):
            raise DeclinedError("damaged")
        return out
