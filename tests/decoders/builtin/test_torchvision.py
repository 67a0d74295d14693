"""torchvision decodes plain JPEGs alone: its decoder of PNG ends the process on damaged files."""

import numpy as np
import pytest
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from gpupipe.decoders.builtin.torchvision import Torchvision
from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import CannotDecodeError
from helpers.jpeg_kinds import as_data, encode, several_scans


def test_only_plain_jpegs_are_taken() -> None:
    kinds = dict(several_scans((35, 70)))
    assert Torchvision().probe(kinds["progressive"]) is not None
    assert Torchvision().probe(kinds["CMYK"]) is None
    assert Torchvision().probe(b"\x89PNG\r\n\x1a\n") is None


def test_the_pixels_are_those_of_its_function() -> None:
    data = as_data(encode((35, 70), "420"))
    decoders = DecoderChain("torchvision")
    for mode, wanted in (("rgb", ImageReadMode.RGB), ("gray", ImageReadMode.GRAY)):
        expected = decode_jpeg(torch.from_numpy(data), wanted).permute(1, 2, 0).numpy()
        assert np.array_equal(decoders.decode(data, DecodeOptions(mode)), expected)


def test_its_error_blames_the_file_and_no_other_decoder_is_asked() -> None:
    data = as_data(encode((35, 70), "420"))
    with pytest.raises(CannotDecodeError, match="incomplete or truncated"):
        DecoderChain("torchvision").decode(data[: len(data) // 2], DecodeOptions())
