"""Decodes whole JPEGs with simplejpeg, which the extra `cpu` installs."""

from typing import Any

from gpupipe.decoders.decoder import DeclinedError, Decoder, Header
from gpupipe.decoders.image_header import read_plain_jpeg


class Simplejpeg(Decoder):
    """Decodes plain JPEGs with libjpeg-turbo, using its exact cosine transform and upsampling."""

    place, extra = 20, "cpu"

    def __init__(self) -> None:
        import simplejpeg

        self._decode = simplejpeg.decode_jpeg

    def probe(self, data: Any) -> Header | None:
        return read_plain_jpeg(data)

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Any:  # fmt: skip
        colors = "RGB" if mode == "rgb" else "GRAY"
        try:
            return self._decode(data, colors, fastdct=False, fastupsample=False, buffer=out)
        except ValueError as e:  # torchvision accepts some damage
            raise DeclinedError(str(e)) from e
