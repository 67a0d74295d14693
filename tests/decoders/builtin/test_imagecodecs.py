"""JPEG XL: the header says the size and orientation, and all bits of a sample are read."""

import numpy as np
import pytest

from gpupipe.decoders.builtin.imagecodecs import Imagecodecs
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from helpers.image_corpus_other import jpegxls

imagecodecs = pytest.importorskip("imagecodecs", reason="the extra jpegxl is not installed")
SIZES = [(8, 8), (16, 256), (40, 30), (17, 25), (300, 400), (1, 513), (9000, 1), (90, 160)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("container", [False, True])
def test_the_header_has_the_size(size: tuple[int, int], container: bool) -> None:
    data = imagecodecs.jpegxl_encode(np.zeros((*size, 3), np.uint8), usecontainer=container)
    header = Imagecodecs().probe(data)
    assert header is not None
    assert (header.format, header.height, header.width) == ("JPEG XL", *size)
    assert header.orientation == 1


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_the_pixels_are_those_that_were_written(mode: str, dtype: str) -> None:
    for name, sample in jpegxls().items():
        if sample.levels is None:
            continue
        pixels = DecoderChain().decode(sample.data, DecodeOptions(mode, False, dtype))
        expected = sample.expected(mode, dtype).transpose(1, 2, 0)
        apart = np.abs(pixels.astype(int) - expected).max()
        assert apart <= (1 if "16 bits" in name else 0), name


def test_what_has_no_range_as_pixels_or_is_cut_off_is_refused() -> None:
    files = jpegxls()
    with pytest.raises(CannotDecodeError, match="float32 has no range"):
        DecoderChain().decode(files["float32 RGB"].data, DecodeOptions())
    for name in ("RGB", "RGB in a container"):
        content = files[name].data
        for end in (*range(2, 60), len(content) // 2):
            with pytest.raises(CannotDecodeError):
                DecoderChain().decode(content[:end], DecodeOptions())


def test_max_pixels_holds_before_decoding() -> None:
    data = imagecodecs.jpegxl_encode(np.zeros((300, 400, 3), np.uint8))
    with pytest.raises(CannotDecodeError, match="400 x 300 pixels"):
        DecoderChain(max_pixels=300 * 400 - 1).decode(data, DecodeOptions())
