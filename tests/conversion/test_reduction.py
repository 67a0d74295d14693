"""Images that are made smaller: size, orientation, depth, and the numbers of masks."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpupipe.conversion.reduction import Reduced, reduce_image, reduce_mask
from gpupipe.decoders.chain import DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from helpers.image_files import encoded


def reduce(data: bytes, side: int) -> Reduced | str:
    chain = DecoderChain()
    array = np.frombuffer(data, np.uint8)
    return reduce_image(chain, array, chain.find(array)[2], side, 90)


def test_a_photograph_keeps_its_look_its_ratio_and_its_orientation(
    orientation_photos: Path,
) -> None:
    path = next(p for p in sorted(orientation_photos.rglob("*.jpg")) if "6" in p.name)
    reduced = reduce(path.read_bytes(), 100)
    assert isinstance(reduced, Reduced)
    with Image.open(path) as before, Image.open(io.BytesIO(reduced.data)) as after:
        assert max(after.size) == 100
        assert abs(after.width / after.height - before.width / before.height) < 0.02
        assert after.getexif()[0x0112] == before.getexif()[0x0112] == 6
        assert reduced.scale == (after.width / before.width, after.height / before.height)
        expected = np.asarray(before.convert("RGB").resize(after.size, Image.Resampling.LANCZOS))
        difference = np.abs(expected.astype(int) - np.asarray(after.convert("RGB")))
    assert difference.mean() < 8


def test_gray_stays_gray_small_stays_and_16_bits_stay() -> None:
    gray = reduce(encoded(Image.linear_gradient("L"), "PNG"), 64)
    assert isinstance(gray, Reduced)
    with Image.open(io.BytesIO(gray.data)) as image:
        assert (image.mode, image.size) == ("L", (64, 64))
    assert reduce(encoded(Image.linear_gradient("L"), "PNG"), 256) == ""
    deep = Image.fromarray(np.full((50, 40), 40_000, np.uint16))
    assert reduce(encoded(deep, "PNG"), 20) == "kept"


def test_masks_keep_their_numbers_and_their_palette() -> None:
    numbers = np.repeat(np.repeat(np.array([[0, 7], [255, 3]], np.uint8), 50, 0), 40, 1)
    mask = Image.fromarray(numbers, "P")
    mask.putpalette([n % 256 for n in range(768)])
    reduced = reduce_mask(encoded(mask, "PNG"), 20)
    assert isinstance(reduced, Reduced)
    with Image.open(io.BytesIO(reduced.data)) as after:
        assert (after.mode, after.format, after.size) == ("P", "PNG", (16, 20))
        assert sorted(set(np.asarray(after).ravel().tolist())) == [0, 3, 7, 255]
        assert after.getpalette() == mask.getpalette()
    assert reduce_mask(encoded(mask, "PNG"), 100) == ""
    with pytest.raises(CannotDecodeError):
        reduce_mask(encoded(mask, "PNG")[:80], 20)
