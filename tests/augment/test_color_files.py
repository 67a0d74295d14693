"""A step that changes colours takes four files: the step, its test, a row, and a line of docs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.augment.color_ops import COLOR_OPS
from helpers.arrays import saved
from helpers.loaders import ENGINES
from helpers.plugin import install

ROOT = Path(__file__).parents[2]
PLUGIN = """
from typing import ClassVar

from gpupipe.augment.color_ops import ColorFunction, ColorValue, register
from gpupipe.augment.color_step import RandomColorStep

SHARE = ColorValue("share", "float64", 0.0, 1.0)
FORMULA = lambda pixels, share: pixels * (1.0 - share) + share
register(__name__, ColorFunction((SHARE,), is_pointwise=True, formula=FORMULA))


class RandomFade(RandomColorStep):
    share: float
    op: ClassVar[str] = __name__

    def op_values(self, p):
        return (self.share,)
"""


def test_a_builtin_one_is_in_four_files() -> None:
    """But for its number in the kernel of engine cpu, which is there for speed, and adapters."""
    names = [f"{prefix}_gamma" for prefix in ("random", "adjust")]
    needed = ["docs/configuration.md", "gpupipe", "native", "pipelines", "setup.cfg", "tests/steps"]
    others = ["gpupipe/*_adapter/*", "gpupipe/engines/cpu/color_stages.py"]
    excluded = [f":!{path}" for path in others]
    command = ["git", "grep", "-lE", "|".join(names), "--", *needed, *excluded]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert files.stdout.split() == [
        "docs/configuration.md",
        "gpupipe/augment/color_ops.py",
        f"gpupipe/steps/{names[0]}.py",
        f"tests/steps/test_{names[0]}.py",
    ]


@pytest.fixture
def as_before() -> Iterator[None]:
    """Forget the functions that a test registers: other tests go through all of them."""
    names = set(COLOR_OPS)
    yield
    for name in COLOR_OPS.keys() - names:
        del COLOR_OPS[name]


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_one_of_another_package_is_a_row_and_a_class_on_every_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder = install(tmp_path, f"faded_{dtype}", PLUGIN, random_fade="RandomFade")
    monkeypatch.syspath_prepend(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 24, 30), np.uint8)
    steps = [{"to_dtype": {"dtype": dtype, "scale": True}}, {"random_fade": {"share": 0.25}}]
    config = {"data": saved(tmp_path, pixels), "pipeline": steps}
    made = []
    for options in ENGINES:
        with gpupipe.load(config, batch_size=6, device="cpu", shuffle=False, **options) as loader:
            made.append(next(iter(loader))["array"])
    exact = torch.from_numpy(pixels) * (1 / 255) * 0.75 + 0.25
    expected = (exact * 255.999).to(torch.uint8) if dtype == "uint8" else exact
    changed = (made[0] == expected).flatten(1).all(1)
    assert 0 < changed.sum() < 6
    assert all(torch.equal(batch, made[0]) for batch in made)
