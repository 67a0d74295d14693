"""to_dtype on arrays: the numbers of torchvision, and the nearest that a dtype holds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.formats.npy import DTYPES
from helpers.arrays import COUNT, ULP, both, numbers, saved

IN_HALVES = ["uint8", "int8", "int16"]


SCALED = [
    (given, made)
    for given in ("uint8", "int8", "uint16", "int16", "int32", "int64")
    for made in DTYPES
    if made not in ("bool", "uint32", "uint64")
]


SCALED = [(given, made) for given, made in SCALED if made != "float16" or given in IN_HALVES]


SCALED += [
    ("float32", made) for made in ("uint8", "int8", "uint16", "int16", "float16", "float64")
] + [
    ("float64", "int32"),
    ("float64", "uint8"),
    ("float16", "float32"),
]


@pytest.mark.parametrize(("given", "made"), SCALED, ids=str)
def test_to_dtype_scales_as_torchvision_does(tmp_path: Path, given: str, made: str) -> None:
    """Negative numbers have no place in an unsigned dtype, and 1.0 none in uint16: torchvision
    wraps those around, here they become 0 and 65535.
    """
    stored = (
        np.random.default_rng(0).random((COUNT, 2, 30)).astype(given)
        if given.startswith("float")
        else numbers(given, (COUNT, 2, 30))
    )
    if made.startswith("u") and np.dtype(given).kind == "i":
        stored = np.abs(np.maximum(stored, -np.iinfo(given).max))
    for i, (found, same) in enumerate(
        both(saved(tmp_path, stored, layout="CL"), [{"to_dtype": {"dtype": made, "scale": True}}])
    ):
        expected = F.to_dtype(torch.from_numpy(stored[i]), getattr(torch, made), scale=True)
        assert torch.equal(same, expected)
        torch.testing.assert_close(found, expected, rtol=ULP * (made == "float16"), atol=0)


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("made", DTYPES)
def test_to_dtype_takes_the_nearest_number_that_there_is(
    tmp_path: Path, given: str, made: str
) -> None:
    stored = numbers(given, (COUNT, 300))
    if given.startswith("float"):
        stored[:, :9] = np.array([0.0, -0.0, 0.3, -0.7, 1e4, -1e4, np.inf, -np.inf, np.nan], given)
        stored[:, 9:40] *= 300
    pairs = both(saved(tmp_path, stored), [{"to_dtype": {"dtype": made}}])
    for i, (found, expected) in enumerate(pairs):
        torch.testing.assert_close(
            found, expected, rtol=ULP * (made == "float16"), atol=0, equal_nan=True
        )
        if np.dtype(made).kind in "iu" and np.dtype(given).kind in "iuf":
            bounds = np.iinfo(made)
            exact = [
                bounds.min
                if n <= bounds.min
                else bounds.max
                if n >= bounds.max
                else 0
                if math.isnan(n)
                else int(n)
                for n in stored[i].tolist()
            ]
            assert found.tolist() == exact
