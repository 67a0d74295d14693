"""Files of every kind in one batch, on a GPU: what its decoder takes, and what Pillow decodes for
it. On a CPU: tests/engines/test_mixed_files.py.
"""

from pathlib import Path

import pytest

from helpers.mixed_files import check_a_refusal_is_named, check_pixels, check_uint16

TOLERANCE = 4
"""Levels between a GPU's JPEG decoder and Pillow's, of smooth images."""


@pytest.mark.parametrize("hw_decoder_load", [0.0, 0.9])
@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_files_that_pillow_decodes_lie_among_jpegs(
    tmp_path: Path, batch_size: int, mode: str, hw_decoder_load: float
) -> None:
    check_pixels(tmp_path, "gpu", batch_size, mode, TOLERANCE, hw_decoder_load=hw_decoder_load)


def test_a_file_that_is_refused_is_named(tmp_path: Path) -> None:
    assert "32" in check_a_refusal_is_named(tmp_path, "gpu")


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_uint16_is_whole(tmp_path: Path, mode: str) -> None:
    check_uint16(tmp_path, "gpu", mode, TOLERANCE)
