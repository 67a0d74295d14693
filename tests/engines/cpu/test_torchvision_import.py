"""Pipelines that need nothing of torchvision do not import it, and one that is broken is named."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.last_steps import make_table
from gpupipe.runtime.installation import find_extension
from helpers.fresh_python import Program, run_each

FLOATS = [{"to_dtype": {"dtype": "float32", "scale": True}}, {"normalize": {"mean": 0, "std": 1}}]
AFFINE = ["decode", {"random_affine": {"degrees": 10}}, {"center_crop": {"size": 48}}, *FLOATS]
TRAIN = ["decode", {"random_resized_crop": {"size": 48}}, "random_horizontal_flip", *FLOATS]
EVAL = ["decode", {"resize": {"size": 50}}, {"center_crop": {"size": 48}}, *FLOATS]
COLOR = ["decode", {"color_jitter": {"brightness": 0.5}}, {"center_crop": {"size": 48}}]
COLOR_OF_FLOATS = ["decode", FLOATS[0], *COLOR[1:]]
IN_TORCH = [
    "decode",
    {"center_crop": {"size": 48}},
    {"to_dtype": {"dtype": "float16"}},
    {"elastic_transform": {"alpha": 5.0}},
]

PROGRAM = """
import sys
sys.path[:0] = {path!r}
import gpupipe
config = {{"data": {{"source": "folder", "root": {root!r}}}, "pipeline": {steps!r}}}
with gpupipe.load(config, engine={engine!r}, device="cpu", batch_size=4, threads=2) as loader:
    print(len(next(iter(loader))["image"]), "torchvision" in sys.modules)
    assert "nvidia.dali" not in sys.modules
"""


RUNS: dict[str, tuple[list[Any], str, bool]] = {
    "affine": (AFFINE, "cpu", False),
    "train": (TRAIN, "cpu", False),
    "eval": (EVAL, "cpu", False),
    "color": (COLOR, "cpu", False),
    "color of floats": (COLOR_OF_FLOATS, "cpu", False),
    "torch": (IN_TORCH, "cpu", False),
    "auto": (AFFINE, "auto", False),
    "broken color": (COLOR_OF_FLOATS, "cpu", True),
    "broken affine": (AFFINE, "cpu", True),
}
"""The steps, the engine, and whether there is a broken torchvision."""
Ended = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ended(small_faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """How each of RUNS ended."""
    pytest.importorskip("cv2")
    folder = tmp_path_factory.mktemp("broken")
    (folder / "torchvision").mkdir()
    broken = folder / "torchvision" / "__init__.py"
    broken.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    programs = [
        PROGRAM.format(
            path=[str(folder)] if is_broken else [],
            root=str(small_faces),
            steps=steps,
            engine=engine,
        )
        for steps, engine, is_broken in RUNS.values()
    ]
    done = run_each(
        ["cv2", "gpupipe.loader", "gpupipe.engines.cpu.engine"],
        [Program(code, {}) for code in programs],
    )
    return dict(zip(RUNS, done, strict=True))


@pytest.mark.parametrize(
    ("name", "imports"),
    [
        ("affine", False),
        ("train", False),
        ("eval", False),
        ("color", find_extension() is None),
        ("color of floats", True),
        ("torch", True),
    ],
)
def test_torchvision_is_imported_where_a_step_needs_it(
    ended: Ended, name: str, imports: bool
) -> None:
    done = ended[name]
    assert (done.stdout, done.returncode) == (f"4 {imports}\n", 0), done.stderr


def test_auto_imports_nothing_of_the_engines_that_it_passes_over(ended: Ended) -> None:
    done = ended["auto"]
    assert (done.stdout, done.returncode) == ("4 False\n", 0), done.stderr


def test_a_torchvision_that_cannot_be_imported_is_named_and_no_file(ended: Ended) -> None:
    done = ended["broken color"]
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        "gpupipe.errors.EngineError: torchvision cannot be imported (operator torchvision::nms "
        "does not exist): it may belong to another version of torch. Install the two together: "
        "pip install --force-reinstall torch torchvision"
    )
    assert ended["broken affine"].stdout == "4 False\n", "which does not need it"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("scale", [True, False])
def test_the_table_of_a_conversion_is_that_of_torchvision(dtype: str, scale: bool) -> None:
    levels = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
    expected = F.to_dtype(levels, getattr(torch, dtype), scale=scale)
    assert torch.equal(make_table((("to_dtype", (dtype, scale)),), None, 3), expected)
