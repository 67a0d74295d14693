"""The parts of items, and their bytes."""

from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.errors import DataError
from gpupipe.sources.helpers.item_parts import PartChoice, as_numbers, encode_all


def learn(item: Any, **choice: Any) -> dict[str, Any]:
    """The key, dtype and layout of each part, by name."""
    parts = PartChoice(**choice).learn(item, "x")
    return {p.name: (p.key, p.spec.dtype, p.spec.layout) for p in parts}


def test_parts_are_named_by_key_or_by_what_they_are() -> None:
    assert learn(b"1") == {"image": (None, "bytes", "")}
    assert learn(np.zeros(5, np.float32)) == {"array": (None, "float32", "L")}
    assert learn([[1, 2], [3, 4]]) == {"image": (None, "int64", "HW")}
    assert learn(([1.0, 2.0], 1)) == {"array": (0, "float64", "L"), "label": (1, "int64", "")}
    assert learn((2.5, 3, "a.jpg", True)) == {
        "image": (2, "bytes", ""),
        "field_0": (0, "float64", ""),
        "field_3": (3, "bool", ""),
        "label": (1, "int64", ""),
    }
    item = {"label": np.int32(3), "mask": b"2", "x": torch.zeros(3, 4, 5)}
    assert learn(item) == {
        "mask": ("mask", "bytes", ""),
        "x": ("x", "float32", "CHW"),
        "label": ("label", "int64", ""),
    }
    assert next(iter(learn(item, fields={"pixels": "x", "mask": "mask"}))) == "pixels"


@pytest.mark.parametrize(
    ("array", "layout"),
    [
        (np.zeros((8, 6, 3), np.uint8), "HWC"),
        (np.zeros((3, 8, 6), np.uint8), "CHW"),
        (np.zeros((8, 6, 3), np.float32), "CHW"),
        (torch.zeros(3, 8, 3, dtype=torch.uint8), "CHW"),
        (np.zeros((8, 6)), "HW"),
    ],
)
def test_arrays_of_numpy_with_channels_last_are_images_of_pillow_or_opencv(
    array: Any, layout: str
) -> None:
    assert learn(array)["image"][2] == layout


def test_numbers_are_of_one_dtype() -> None:
    parts = PartChoice().learn((b"1", 3, 0.5), "x")
    (values,) = encode_all(parts, [(b"2", np.int16(7), 4)])
    found = {p.name: v for p, v in zip(parts, values, strict=True)}
    assert found["label"].view(np.int64)[0] == 7
    assert found["field_2"].view(np.float64)[0] == 4.0
    with pytest.raises(ValueError, match=r"its 'label' is a float 1.5, but .* is int64 \(\)"):
        encode_all(parts, [(b"2", 1.5, 4)])
    with pytest.raises(ValueError, match=r"it is a int 5 without 0, which the first item has"):
        encode_all(parts, [5])


def test_numbers_of_python_are_encoded_at_once() -> None:
    parts = PartChoice().learn((b"1", 3, 0.5), "x")
    encoded = encode_all(parts, [(b"2", -7, 4.25), (b"34", 2**62, float("inf"))])
    assert [image.tobytes() for image, *_ in encoded] == [b"2", b"34"]
    found = {p.name: [values[n] for values in encoded] for n, p in enumerate(parts)}
    assert [int(v.view(np.int64)[0]) for v in found["label"]] == [-7, 2**62]
    assert [float(v.view(np.float64)[0]) for v in found["field_2"]] == [4.25, float("inf")]
    with pytest.raises(ValueError, match=r"its 'label' is a int 9223372036854775808, but .* int64"):
        encode_all(parts, [(b"2", 2**63, 0.0)])
    encoded = encode_all(parts, [(b"2", 1, 0.0), (b"2", True, 0)])
    assert [values[2].view(np.int64).tolist() for values in encoded] == [[1], [1]]


def test_what_is_no_number_is_known() -> None:
    assert as_numbers(torch.zeros(2, dtype=torch.bfloat16)) is None
    assert as_numbers(np.array(["a"])) is None
    assert as_numbers([[1], [2, 3]]) is None
    big = as_numbers(np.arange(3, dtype=">i4"))
    assert big is not None
    assert big.dtype.isnative
    with pytest.raises(DataError, match=r"x\[0\] is a Tensor \(2,\) of bfloat16"):
        learn(torch.zeros(2, dtype=torch.bfloat16))
