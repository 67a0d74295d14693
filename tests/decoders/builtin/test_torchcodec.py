"""JPEG, AVIF and HEIC with torchcodec: the pixels of the other decoders, where they have any."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from gpupipe.errors import EngineError
from helpers.image_corpus_other import avifs
from helpers.image_files import encoded
from helpers.jpeg_kinds import as_data, decode_whole, one_scan, several_scans

pytest.importorskip("torchcodec", reason="the extra heic is not installed", exc_type=ImportError)
PLAIN = DecodeOptions()
HEIC = as_data((Path(__file__).parents[2] / "data" / "gradient.heic").read_bytes())
"""Of 48 x 32 pixels: [5 x, 7 y, 3 (x + y)] at column x and row y."""


def test_jpegs_have_the_pixels_of_the_other_decoders() -> None:
    decoders = DecoderChain("torchcodec")
    for name, content in [*one_scan((35, 70)), *several_scans((35, 70))]:
        data = as_data(content)
        for mode in ("rgb", "gray"):
            expected = decode_whole(data, mode)
            assert np.array_equal(decoders.decode(data, DecodeOptions(mode)), expected), name


@pytest.mark.parametrize("options", [PLAIN, DecodeOptions("gray")], ids=str)
def test_avifs_have_the_pixels_of_pillow(options: DecodeOptions) -> None:
    decoders, pillow = DecoderChain("torchcodec"), DecoderChain("pil")
    by = {}
    for name, sample in avifs().items():
        data = as_data(sample.data)
        assert np.array_equal(decoders.decode(data, options), pillow.decode(data, options)), name
        by[name] = decoders.find_decoder(data, options)
    left = {name for name, decoder in by.items() if decoder == "pillow"}
    assert left == {"RGBA", "animated"}, "of which alpha is dropped, and the first frame is taken"


def test_avifs_of_more_than_8_bits_have_all_of_them() -> None:
    data = as_data(avifs()["12 bits by OpenCV"].data)
    deep = DecoderChain().decode(data, DecodeOptions("rgb", False, "uint16"))
    assert (deep % 257).any(), "no multiples of 257"
    coarse = DecoderChain().decode(data, PLAIN)
    assert np.abs((deep >> 8).astype(int) - coarse).max() <= 4, "libavif rounds in between"


def test_an_avif_that_is_turned_is_left_to_pillow() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.linear_gradient("L").resize((30, 20)).convert("RGB"), "AVIF", exif=exif)
    assert DecoderChain().find_decoder(data, PLAIN) == "pillow"
    assert DecoderChain().decode(data, PLAIN).shape == (20, 30, 3)
    assert DecoderChain().decode(data, DecodeOptions(apply_exif=True)).shape == (30, 20, 3)


def test_a_heic() -> None:
    try:
        pixels = DecoderChain().decode(HEIC, PLAIN)
    except EngineError as e:
        pytest.skip(str(e))
    y, x = np.mgrid[:32, :48]
    assert np.abs(pixels - np.stack([5 * x, 7 * y, 3 * (x + y)], -1)).max() <= 8
    assert DecoderChain().decode(HEIC, DecodeOptions("gray")).shape == (32, 48, 1)
    with pytest.raises(CannotDecodeError):
        DecoderChain().decode(HEIC[:-200], PLAIN)


def test_a_heic_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(CannotDecodeError, match="an image of 64 x 64 pixels"):
        DecoderChain(max_pixels=4095).decode(HEIC, PLAIN)
    with pytest.raises(CannotDecodeError, match="no box of the file has the image's size"):
        DecoderChain().decode(HEIC[:60], PLAIN)
