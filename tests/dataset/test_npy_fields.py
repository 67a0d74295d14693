import numpy as np
import pydantic
import pytest

from gpupipe.dataset.npy_fields import ArrayFormat, locate_arrays, read_header
from helpers.image_files import npy


def test_the_numbers_are_located_behind_the_headers() -> None:
    files = [npy(np.zeros((2, 3 + n), np.float32)) for n in range(2)]
    headers = [read_header(str(n), file) for n, file in enumerate(files)]
    expected = ArrayFormat(dtype="float32", shape=(2, None))
    ranges = locate_arrays(["0", "1"], [1000, 5000], headers, expected)
    assert ranges.offset.tolist() == [1128, 5128]
    assert ranges.length.tolist() == [24, 32]
    assert ranges.shapes is not None
    assert ranges.shapes.tolist() == [[2, 3], [2, 4]]
    with pytest.raises(ValueError, match=r"^1: an array of shape .*, where .* was expected"):
        locate_arrays(["0", "1"], [0, 0], headers, ArrayFormat(dtype="float32", shape=(2, 3)))
    others = [*headers, read_header("2", npy(np.zeros(3, np.float32)))]
    with pytest.raises(ValueError, match=r"^2: an array of shape \[3\], but 0 has \[2, 3\]"):
        locate_arrays(["0", "1", "2"], [0, 0, 0], others, None)
    mixed = [*headers, read_header("2", npy(np.zeros((2, 3), np.uint8)))]
    with pytest.raises(ValueError, match=r"^2: an array of uint8, where float32 was expected"):
        locate_arrays(["0", "1", "2"], [0, 0, 0], mixed, None)
    assert len(locate_arrays([], [], [], expected).offset) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy(np.zeros(8))[:-1], "7: 191 bytes, .* 192: the array is not whole"),
        (npy(np.zeros((0, 3))), "7: an array without numbers"),
        (b"PNG", "7: no .npy file"),
    ],
)
def test_what_is_no_whole_array_is_named(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        read_header("7", content)


def test_a_layout_has_a_letter_for_each_axis() -> None:
    with pytest.raises(pydantic.ValidationError, match="layout"):
        ArrayFormat(dtype="uint8", shape=(3, 4), layout="HWC")
