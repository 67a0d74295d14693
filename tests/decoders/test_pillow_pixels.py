"""Images that Pillow opens, but whose pixels it would read wrong, are refused by name."""

import io

import numpy as np
import pytest
from PIL import Image

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.decoders.pillow_pixels import check_supported, get_raw_mode, read_jpeg2000_sizes
from helpers.image_files import encoded

SHADES = np.arange(64).reshape(8, 8)


def check(data: bytes, kind: str) -> None:
    with Image.open(io.BytesIO(data)) as image:
        check_supported(image, data, kind)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("uint8", "PNG"), ("uint8", "TIFF"), ("uint16", "PNG"), ("uint16", "TIFF")]
)
def test_images_of_8_and_16_bits_pass(dtype: str, kind: str) -> None:
    check(encoded(Image.fromarray(SHADES.astype(dtype)), kind), kind)


@pytest.mark.parametrize(
    ("dtype", "words"), [("int32", "32-bit signed integers"), ("float32", "32-bit floats")]
)
def test_a_tiff_whose_numbers_have_no_range_is_refused(dtype: str, words: str) -> None:
    data = encoded(Image.fromarray(SHADES.astype(dtype)), "TIFF")
    with pytest.raises(CannotDecodeError, match=f"TIFF: {words}, which have no range as pixels"):
        check(data, "TIFF")


def test_an_image_of_more_pixels_than_are_accepted_is_refused() -> None:
    data = encoded(Image.fromarray(SHADES.astype(np.uint8)), "PNG")
    assert DecoderChain("pil", 64).decode(data, DecodeOptions()).shape == (8, 8, 3)
    with pytest.raises(CannotDecodeError, match="8 x 8 pixels"):
        DecoderChain("pil", 63).decode(data, DecodeOptions())


def test_the_sizes_of_the_components_of_a_jpeg_2000() -> None:
    gray = encoded(Image.fromarray(SHADES.astype(np.uint8)), "JPEG2000")
    color = encoded(Image.fromarray(np.dstack([SHADES.astype(np.uint8)] * 3)), "JPEG2000")
    assert list(read_jpeg2000_sizes(gray)) == [7]
    assert list(read_jpeg2000_sizes(color)) == [7, 7, 7]
    assert read_jpeg2000_sizes(b"no such image") == b""


def test_a_jpeg_2000_of_signed_numbers_is_refused() -> None:
    data = bytearray(encoded(Image.fromarray(SHADES.astype(np.uint8)), "JPEG2000"))
    check(bytes(data), "JPEG 2000")
    data[data.index(b"\xff\x4f\xff\x51") + 42] |= 0x80
    image = Image.new("L", (8, 8))
    with pytest.raises(CannotDecodeError, match="JPEG 2000: 8-bit signed integers"):
        check_supported(image, bytes(data), "JPEG 2000")


def test_the_raw_mode_is_that_of_the_file() -> None:
    with Image.open(io.BytesIO(encoded(Image.new("RGB", (8, 8)), "PNG"))) as image:
        assert get_raw_mode(image) == "RGB"
