"""Files of every kind in one batch, on DALI's CPU back end: the same checks as on a GPU, in
tests/gpu/test_any_file.py.
"""

from pathlib import Path

import pytest

from helpers.mixed_files import check_a_refusal_is_named, check_pixels, check_uint16


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_files_that_pillow_decodes_lie_among_jpegs(
    tmp_path: Path, batch_size: int, mode: str
) -> None:
    check_pixels(tmp_path, "cpu", batch_size, mode, 1)


def test_a_file_that_is_refused_is_named(tmp_path: Path) -> None:
    assert "32" in check_a_refusal_is_named(tmp_path, "cpu")


@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_uint16_is_whole(tmp_path: Path, mode: str) -> None:
    check_uint16(tmp_path, "cpu", mode, 1)
