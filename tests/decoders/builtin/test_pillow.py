"""What Pillow finds in headers of images that are not plain, and its errors in plain words."""

import numpy as np
import pytest
from PIL import Image

from gpupipe.decoders.builtin.pillow import Pillow
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from helpers.image_files import encoded

PICTURE = Image.linear_gradient("L").resize((30, 20)).convert("RGB")


@pytest.mark.parametrize("form", ["BMP", "GIF", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_the_header_of_an_image_that_is_not_plain(form: str) -> None:
    header = Pillow().probe(encoded(PICTURE, form))
    assert header is not None
    assert not header.is_plain
    assert (header.height, header.width, header.orientation) == (20, 30, 1)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF", "AVIF"])
def test_the_orientation_is_that_of_the_exif_data(form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    header = Pillow().probe(encoded(PICTURE, form, exif=exif))
    assert header is not None
    assert header.orientation == 6


def test_formats_that_it_does_not_read_are_left_to_others() -> None:
    assert Pillow().probe(b"\xff\n" + bytes(20)) is None
    assert Pillow().probe(b"no image") is None


def test_errors_are_in_plain_words() -> None:
    data = encoded(PICTURE, "TIFF")
    for cut in (data[:30], data[: len(data) // 2]):
        with pytest.raises(CannotDecodeError, match="TIFF: "):
            DecoderChain().decode(cut, DecodeOptions())


def test_pillows_own_limit_of_pixels_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for form in ("PNG", "BMP", "TIFF"):
        pixels = DecoderChain("pil").decode(encoded(PICTURE, form), DecodeOptions())
        assert np.array_equal(pixels, np.asarray(PICTURE))
    assert Image.MAX_IMAGE_PIXELS == 100
