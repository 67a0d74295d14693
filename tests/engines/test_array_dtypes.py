"""to_dtype on arrays: the numbers of torchvision, and the nearest that a dtype holds."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional as F

from gpupipe.formats.npy import DTYPES
from helpers.arrays import COUNT, ULP, both_of_each, numbers, saved

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


@pytest.mark.parametrize("given", list(dict.fromkeys(given for given, _ in SCALED)))
def test_to_dtype_scales_as_torchvision_does(tmp_path: Path, given: str) -> None:
    """Negative numbers have no place in an unsigned dtype, and 1.0 none in uint16: torchvision
    wraps those around, here they become 0 and 65535.
    """
    stored = (
        np.random.default_rng(0).random((COUNT, 2, 30)).astype(given)
        if given.startswith("float")
        else numbers(given, (COUNT, 2, 30))
    )
    unsigned = [made for g, made in SCALED if g == given and made.startswith("u")]
    others = [made for g, made in SCALED if g == given and made not in unsigned]
    if np.dtype(given).kind == "i":
        check_scaled(tmp_path, np.abs(np.maximum(stored, -np.iinfo(given).max)), unsigned)
    else:
        others += unsigned
    check_scaled(tmp_path, stored, others)


def check_scaled(folder: Path, stored: NDArray[Any], dtypes: list[str]) -> None:
    pipelines: dict[str, list[Any]] = {
        f"to_{made}": [{"to_dtype": {"dtype": made, "scale": True}}] for made in dtypes
    }
    pairs = both_of_each(saved(folder, stored, layout="CL"), pipelines)
    for made in dtypes:
        for i, (found, same) in enumerate(pairs[f"to_{made}"]):
            expected = F.to_dtype(torch.from_numpy(stored[i]), getattr(torch, made), scale=True)
            assert torch.equal(same, expected), made
            torch.testing.assert_close(found, expected, rtol=ULP * (made == "float16"), atol=0)


@pytest.mark.parametrize("given", DTYPES)
def test_to_dtype_takes_the_nearest_number_that_there_is(tmp_path: Path, given: str) -> None:
    stored = numbers(given, (COUNT, 300))
    if given.startswith("float"):
        stored[:, :9] = np.array([0.0, -0.0, 0.3, -0.7, 1e4, -1e4, np.inf, -np.inf, np.nan], given)
        stored[:, 9:40] *= 300
    pipelines: dict[str, list[Any]] = {
        f"to_{made}": [{"to_dtype": {"dtype": made}}] for made in DTYPES
    }
    every = both_of_each(saved(tmp_path, stored), pipelines)
    for made in DTYPES:
        for i, (found, expected) in enumerate(every[f"to_{made}"]):
            torch.testing.assert_close(
                found, expected, rtol=ULP * (made == "float16"), atol=0, equal_nan=True
            )
            if np.dtype(made).kind in "iu" and np.dtype(given).kind in "iuf":
                assert found.tolist() == [nearest(n, made) for n in stored[i].tolist()], made


def nearest(number: float, dtype: str) -> int:
    """The number of an integer dtype that a number becomes."""
    bounds = np.iinfo(dtype)
    if math.isnan(number):
        return 0
    return int(min(max(number, bounds.min), bounds.max))
