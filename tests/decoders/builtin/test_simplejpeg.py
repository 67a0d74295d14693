"""simplejpeg: the pixels of torchvision, and who gets the files that it refuses."""

import numpy as np
import pytest

from gpupipe.decoders.builtin.simplejpeg import Simplejpeg
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import DeclinedError
from helpers.jpeg_kinds import as_data, decode_whole, encode, one_scan, several_scans

KINDS = dict([*one_scan((35, 70)), *several_scans((35, 70))])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_all_jpegs_have_the_pixels_of_torchvision(name: str, mode: str) -> None:
    data = as_data(KINDS[name])
    pixels = DecoderChain("simplejpeg").decode(data, DecodeOptions(mode))
    assert np.array_equal(pixels, decode_whole(data, mode))


def test_only_plain_jpegs_are_taken() -> None:
    assert Simplejpeg().probe(encode((35, 70), "420")) is not None
    assert Simplejpeg().probe(KINDS["CMYK"]) is None
    assert Simplejpeg().probe(b"\x89PNG\r\n\x1a\n") is None


def test_the_memory_that_is_given_is_used() -> None:
    data = as_data(encode((35, 70), "420"))
    decoder, out = Simplejpeg(), np.empty((35, 70, 3), np.uint8)
    header = decoder.probe(data)
    assert header is not None
    pixels = decoder.decode(header, data, mode="rgb", dtype="uint8", out=out)
    assert np.shares_memory(pixels, out)


def test_damage_is_left_to_the_next_decoder() -> None:
    data = as_data(encode((35, 70), "420"))
    decoder = Simplejpeg()
    header = decoder.probe(data)
    assert header is not None
    with pytest.raises(DeclinedError):
        decoder.decode(header, data[: len(data) // 2], mode="rgb", dtype="uint8")
