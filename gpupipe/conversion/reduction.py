"""Makes images smaller: JPEGs of photographs, and PNGs of masks with the same class numbers."""

import io
from typing import Any, NamedTuple

from PIL import Image

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError, Header, find_blame

_ORIENTATION = 0x0112
_JPEG_DEPTH = 8


class Reduced(NamedTuple):
    """An image that was made smaller.

    Attributes:
        kind: The ending for its format.
        data: The bytes of the file.
        scale: Its width and height over those of the stored image before.
    """

    kind: str
    data: memoryview
    scale: tuple[float, float]


def reduce_image(
    chain: DecoderChain, data: Any, header: Header, max_side: int, quality: int
) -> Reduced | str:
    """Return an image as a JPEG whose longer side is `max_side` pixels.

    Lanczos' filter reduces it. The orientation of its EXIF is kept, and other metadata is not.

    Args:
        chain: Decodes it.
        data: The bytes of the file.
        header: The header of the file.
        max_side: The longest side in pixels.
        quality: The quality of the JPEG, 1 to 100.

    Returns:
        The image; "" if it is small enough, and "kept" if it has more than 8 bits a channel.

    Raises:
        CannotDecodeError: The file is damaged.
    """
    options = DecodeOptions("gray" if header.channels == 1 else "rgb")
    encoded = chain.open(data, options)
    height, width = encoded.size
    if max(height, width) <= max_side:
        return ""
    if header.depth > _JPEG_DEPTH:
        return "kept"
    pixels = encoded.decode(options)
    size = _find_size(width, height, max_side)
    image = Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels)
    exif = Image.Exif()
    if header.orientation > 1:
        exif[_ORIENTATION] = header.orientation
    file = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=quality, exif=exif)
    return Reduced("jpg", file.getbuffer(), (size[0] / width, size[1] / height))


def reduce_mask(data: Any, max_side: int) -> Reduced | str:
    """Return a mask as a PNG whose longer side is `max_side` pixels, with the nearest pixels.

    It keeps the palette or the depth of the file. Returns "" if the mask is small enough.

    Raises:
        CannotDecodeError: The file is damaged.
    """
    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(data)) as mask:
            if max(mask.size) <= max_side:
                return ""
            size = _find_size(*mask.size, max_side)
            scale = size[0] / mask.width, size[1] / mask.height
            mask.resize(size, Image.Resampling.NEAREST).save(file, "PNG")
    except Exception as e:
        error = find_blame(e)
        raise error if isinstance(error, CannotDecodeError) else e  # noqa: B904
    return Reduced("png", file.getbuffer(), scale)


def _find_size(width: int, height: int, max_side: int) -> tuple[int, int]:
    """Return the width and the height of an image whose longer side becomes `max_side` pixels."""
    longest = max(width, height)
    return (
        max(1, round(width * max_side / longest)),
        max(1, round(height * max_side / longest)),
    )
