"""Decodes JPEG, AVIF and HEIC with torchcodec, which the extra `heic` installs."""

import importlib
import re
from importlib.metadata import version
from typing import Any

from gpupipe.decoders.decoder import (
    CannotDecodeError,
    DeclinedError,
    Decoder,
    Header,
    Pixels,
    convert_mode,
    iterate_boxes,
)
from gpupipe.decoders.image_header import read_header
from gpupipe.errors import EngineError

_OLDEST = 0, 16
_HEAD = 64
"""Number of leading bytes that contain the brands of a file."""
_SIZE = re.compile(rb"\0\0\0\x14ispe\0\0\0\0(....)(....)", re.DOTALL)
_ITEM = re.compile(rb"infe[\x02\x03]..(.)....(?:..)?(?:hvc1|grid|iden|iovl)", re.DOTALL)
_PARTS = re.compile(rb"thmb|auxl")
"""Matches references from thumbnails, and from images of depth or alpha."""


class Torchcodec(Decoder):
    """Decodes JPEG, AVIF and HEIC with torchcodec. HEIC needs libheif on the machine.

    torchcodec uses libjpeg-turbo, dav1d and libheif. It always applies the orientation of a file.
    So this decoder only accepts JPEGs and AVIFs that are upright. In HEIC, the rotation is part of
    decoding.
    """

    place, formats, extra = 30, frozenset({"HEIC"}), "heic"

    def __init__(self) -> None:
        installed = version("torchcodec")
        if tuple(map(int, installed.split(".")[:2])) < _OLDEST:
            raise ImportError(f"torchcodec {installed} has no decoders of images")
        decoders = importlib.import_module("torchcodec.decoders")
        self._decoders = {
            "JPEG": decoders.decode_jpeg,
            "AVIF": decoders.decode_avif,
            "HEIC": decoders.decode_heic,
        }

    def probe(self, data: Any) -> Header | None:
        header = read_header(data)
        if header.format == "JPEG":
            return header if header.is_plain and header.orientation == 1 else None
        return _read_boxes(header, bytes(data)) if header.format in self._decoders else None

    def decode(
        self, header: Header, data: Any, *, mode: str, dtype: str, window: Any = None,
        out: Any = None,
    ) -> Pixels:  # fmt: skip
        import torch

        is_jpeg, decode = header.format == "JPEG", self._decoders[header.format]
        wanted = torch.uint8 if is_jpeg or dtype == "uint8" else "auto"
        try:
            image = decode(
                torch.from_numpy(data),
                mode="GRAY" if is_jpeg and mode == "gray" else "RGB",
                output_dtype=wanted,
            )
        except ImportError as e:  # of HEIC alone: torchcodec's wheel has no libheif
            raise EngineError(f"HEIC needs libheif beside torchcodec: {e}") from e
        except RuntimeError as e:
            raise DeclinedError(str(e)) from e
        image = image[0] if image.ndim == 4 else image
        return convert_mode(image.permute(1, 2, 0).numpy(), mode)


def _read_boxes(header: Header, data: bytes) -> Header | None:
    """Return the header of a still AVIF or a HEIC; None for AVIFs that Pillow must decode.

    torchcodec decodes all images of a HEIC, of which `decode` returns the first. So `tile` in the
    header has the size of all images together.
    """
    boxes = (data[begin:end] for kind, begin, end in iterate_boxes(data) if kind == b"meta")
    meta = next(boxes, b"")
    sizes = [(int.from_bytes(h, "big"), int.from_bytes(w, "big")) for w, h in _SIZE.findall(meta)]
    if header.format == "AVIF":
        is_still = sizes and b"avis" not in data[8:_HEAD]
        # torchcodec applies the rotation (irot, imir), and multiplies colours with alpha (auxC).
        if not is_still or any(box in meta for box in (b"irot", b"imir", b"auxC")):
            return None
    if not sizes:
        raise CannotDecodeError(f"{header.format}: no box of the file has the image's size")
    height, width = max(sizes, key=lambda size: size[0] * size[1])
    shown = sum(not flags[0] & 1 for flags in _ITEM.findall(meta)) - len(_PARTS.findall(meta))
    return header._replace(height=height, width=width, tile=(height * max(shown, 1), width))
