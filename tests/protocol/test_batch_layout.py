"""Where the fields of a batch lie."""

from __future__ import annotations

import pytest
import torch

from gpupipe.protocol.batch_layout import ELEMENT_SIZES, MalformedMessage, TensorField, offsets


def test_sizes_of_elements_are_those_of_torch() -> None:
    for name, size in ELEMENT_SIZES.items():
        assert getattr(torch, name).itemsize == size


def test_fields_follow_one_another_aligned() -> None:
    fields = [
        TensorField("image", "uint8", (3, 5), False),
        TensorField("empty", "float32", (0, 7), False),
        TensorField("label", "int64", (8,), False),
        TensorField("id", "int64", (1,), False),
    ]
    assert offsets(fields) == ([0, 64, 64, 128], 136)
    assert offsets([]) == ([], 0)


def test_what_has_no_size_is_refused() -> None:
    for dtype, shape, channels_last in [("object", (1,), False), ("uint8", (1, 2, 3), True)]:
        field = TensorField("a", dtype, shape, channels_last)
        with pytest.raises(MalformedMessage, match="field 'a' has dtype"):
            offsets([field])
