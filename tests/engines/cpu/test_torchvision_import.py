"""Pipelines that need nothing of torchvision do not import it, and one that is broken is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.level_tables import make_table

FLOATS = [{"to_dtype": {"dtype": "float32", "scale": True}}, {"normalize": {"mean": 0, "std": 1}}]
AFFINE = ["decode", {"random_affine": {"degrees": 10}}, {"center_crop": {"size": 64}}, *FLOATS]
TRAIN = ["decode", {"random_resized_crop": {"size": 64}}, "random_horizontal_flip", *FLOATS]
EVAL = ["decode", {"resize": {"size": 80}}, {"center_crop": {"size": 64}}, *FLOATS]
COLOR = ["decode", {"color_jitter": {"brightness": 0.5}}, {"center_crop": {"size": 64}}]
IN_TORCH = ["decode", {"center_crop": {"size": 64}}, {"elastic_transform": {"alpha": 5.0}}]

PROGRAM = """
import sys
sys.path[:0] = {path!r}
import gpupipe
config = {{"data": {{"source": "folder", "root": {root!r}}}, "pipeline": {steps!r}}}
with gpupipe.load(config, engine={engine!r}, device="cpu", batch_size=4, threads=2) as loader:
    print(len(next(iter(loader))["image"]), "torchvision" in sys.modules)
    assert "nvidia.dali" not in sys.modules
"""


def run(
    root: Path, steps: list[Any], *path: str, engine: str = "cpu"
) -> subprocess.CompletedProcess[str]:
    code = PROGRAM.format(path=list(path), root=str(root), steps=steps, engine=engine)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("steps", "imports"),
    [(AFFINE, False), (TRAIN, False), (EVAL, False), (COLOR, True), (IN_TORCH, True)],
    ids=["affine", "train", "eval", "color", "torch"],
)
def test_torchvision_is_imported_where_a_step_needs_it(
    faces: Path, steps: list[Any], imports: bool
) -> None:
    pytest.importorskip("cv2")
    done = run(faces, steps)
    assert (done.stdout, done.returncode) == (f"4 {imports}\n", 0), done.stderr


def test_auto_imports_nothing_of_the_engines_that_it_passes_over(faces: Path) -> None:
    pytest.importorskip("cv2")
    done = run(faces, AFFINE, engine="auto")
    assert (done.stdout, done.returncode) == ("4 False\n", 0), done.stderr


def test_a_torchvision_that_cannot_be_imported_is_named_and_no_file(
    faces: Path, tmp_path: Path
) -> None:
    (tmp_path / "torchvision").mkdir()
    broken = tmp_path / "torchvision" / "__init__.py"
    broken.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    done = run(faces, COLOR, str(tmp_path))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "gpupipe.errors.EngineError: torchvision cannot be imported (operator torchvision::nms "
        "does not exist): it may belong to another version of torch. Install the two together: "
        "pip install --force-reinstall torch torchvision"
    )
    assert run(faces, AFFINE, str(tmp_path)).stdout == "4 False\n", "which does not need it"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("scale", [True, False])
def test_the_table_of_a_conversion_is_that_of_torchvision(dtype: str, scale: bool) -> None:
    levels = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    expected = F.to_dtype(levels, getattr(torch, dtype), scale=scale)
    assert torch.equal(make_table((("to_dtype", (dtype, scale)),), None, 3), expected)
