"""Tables of what to_dtype and normalize make of each level, and the numbers that make them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.value_tables import make_numbers, make_table

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LEVELS = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
SCALED = ("to_dtype", ("float32", True))
NORMAL = ("normalize", (MEAN, STD))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("scale", [True, False])
def test_a_conversion_is_that_of_torchvision(dtype: str, scale: bool) -> None:
    expected = F.to_dtype(LEVELS, getattr(torch, dtype), scale=scale)
    assert torch.equal(make_table((("to_dtype", (dtype, scale)),), None, 3), expected)


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float64"])
def test_a_normalized_level_is_that_of_torchvision(dtype: str | None) -> None:
    expected = F.normalize(F.to_dtype(LEVELS, torch.float32, scale=True), list(MEAN), list(STD))
    made = make_table((SCALED, NORMAL), dtype, 3)
    assert torch.equal(made, expected if dtype is None else expected.to(getattr(torch, dtype)))


def test_without_calls_a_level_is_itself() -> None:
    assert torch.equal(make_table((), None, 1)[0, 0], torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_the_numbers_make_the_table_to_the_bit(dtype: str | None) -> None:
    numbers = make_numbers((SCALED, NORMAL), dtype, 3)
    assert numbers is not None
    scale, mean, std = numbers[:, :, None]
    made = torch.from_numpy((np.arange(256, dtype=np.float32) * scale - mean) / std)
    table = make_table((SCALED, NORMAL), dtype, 3)[:, 0]
    assert torch.equal(made.to(table.dtype), table)


def test_a_table_that_float32_does_not_make_has_no_numbers() -> None:
    assert make_numbers((("to_dtype", ("float16", True)), NORMAL), "float32", 3) is None
    assert make_numbers((SCALED,), "bfloat16", 3) is None
    assert make_numbers((("to_dtype", ("float64", True)),), None, 3) is None
