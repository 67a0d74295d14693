"""Pixels as PNM files."""

import io

import numpy as np
import pytest
from PIL import Image

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.pnm import as_pnm


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_the_pixels_come_back(channels: int, dtype: str) -> None:
    pixels = np.arange(5 * 7 * channels).reshape(5, 7, channels).astype(dtype) * 17
    file = as_pnm(pixels)
    options = DecodeOptions("gray" if channels == 1 else "rgb", False, dtype)
    assert np.array_equal(DecoderChain().decode(file, options), pixels)
    if dtype == "uint8":
        opened = np.asarray(Image.open(io.BytesIO(file.tobytes())))
        assert np.array_equal(opened.reshape(pixels.shape), pixels)
