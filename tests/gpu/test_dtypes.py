"""Every step on every dtype, on a GPU: what passes the config runs, and makes what the CPU does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import config
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.step_registry import STEPS
from helpers.arrays import numbers, saved
from helpers.every_step import CASES, COLORS, ON_CPU, SIZE, of_image, photograph


@pytest.mark.parametrize("kind", ["image", "CHW", "HW"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_step_that_passes_the_config_runs(tmp_path: Path, dtype: str, kind: str) -> None:
    shape = (3, *SIZE) if kind == "CHW" else SIZE
    image = photograph(tmp_path) if kind == "image" else {}
    for case in (case for case in CASES if case not in ON_CPU):
        before = of_image(dtype, case=case) if kind == "image" else []
        array = numbers(dtype, (1, *shape))
        is_color = COLORS.keys() & case.keys() and array.dtype.kind == "f"
        data = image or saved(tmp_path, np.abs(array) / 2 if is_color else array, layout=kind)
        written = {"data": data, "pipeline": [*before, case]}
        try:
            config.read(written)
        except gpupipe.ConfigError:
            continue
        agree(*(delivered(written, device) for device in ("gpu", "cpu")), next(iter(case)))


def delivered(written: dict[str, Any], device: str) -> torch.Tensor:
    with gpupipe.load(written, device=device, batch_size=1) as loader:
        image: torch.Tensor = next(iter(loader))[loader.config.pipeline.main][0]
        return image.cpu()


def agree(made: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """To the bit, but for pixels that are made between others, which agree in the mean; and those
    that are rounded.
    """
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    wide = made.double(), expected.double()
    if STEPS.find(name).interpolates is True:  # containers say it of what they hold
        assert (wide[0] - wide[1]).abs().mean() <= 0.05 * wide[1].abs().max().clamp(min=1), name
    elif name == "jpeg":  # DALI simulates the codec on a GPU; noise differed by 10.5 on an H200
        assert (wide[0] - wide[1]).abs().mean() <= 12, name
    elif name in ("normalize", "grayscale", "to_dtype", *COLORS):
        level = 1.0 if not made.dtype.is_floating_point else 0.0
        torch.testing.assert_close(*wide, rtol=2.0**-10, atol=max(level, 1e-3), equal_nan=True)
    else:
        assert torch.equal(made, expected), name
