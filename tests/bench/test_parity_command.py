"""gpupipe parity, as a user calls it, and on real photographs."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.bench.parity import measure
from helpers.plugin import install

ALL_STEPS = [
    "decode",
    {"resize": {"size": 130}},
    {"pad": {"padding": 4, "padding_mode": "reflect"}},
    {"center_crop": {"size": 120}},
    {"random_crop": {"size": 110}},
    {"random_affine": {"degrees": 10, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_rotation": {"degrees": 10, "interpolation": "bilinear"}},
    {"random_resized_crop": {"size": 96}},
    "random_horizontal_flip",
    "random_vertical_flip",
    {"grayscale": {"num_output_channels": 3}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}},
]


@pytest.mark.parametrize("engine", ["dali", "cpu"])
def test_every_step_agrees_on_real_photographs(photos: Path, tmp_path: Path, engine: str) -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": str(photos)}, "pipeline": ALL_STEPS}
    )
    found = list(measure(checked, checked.source.index(), ["cpu"], 4, engine=engine))
    assert [a.step for a in found] == [e.key for e in checked.pipeline.entries]
    assert {a.step: (a.mean, a.max) for a in found if not a.holds} == {}
    assert all(a.psnr > 35 for a in found)
    assert found[0].limits_max
    assert not found[-1].limits_max
    limits = {a.step: a.limit for a in found}
    assert (limits["decode"], limits["resize"], limits["random_affine"], limits["normalize"]) == (
        1,
        0.5,
        1,
        2,
    ), "0.5 for each step that interpolates"


PLUGIN = '''
from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import Step


class Brighten(Step):
    """Adds 3 levels; its lowering is wrong, and adds 5."""

    def infer_spec(self, given):
        return check_decoded(given)

    def lower(self, image, p):
        from nvidia.dali import fn, types
        image.apply("brighten", lambda pixels: fn.cast_like(pixels // 2 + 5, pixels))

    def torch(self, image, p):
        return image // 2 + 3
'''


def test_a_broken_step_fails_by_its_name(config: Path, cli: Any) -> None:
    folder = install(config.parent, "broken", PLUGIN, brighten="Brighten")
    done = cli(
        folder,
        "parity",
        "config.yaml",
        "pipeline=[decode, random_horizontal_flip, brighten]",
        "engine=dali",
        "--samples",
        "8",
        PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    )
    assert done.returncode == 1, done.stderr
    assert "differ too much, from step 'brighten' on" in done.stderr
    assert done.stdout.count("holds") == 2


def test_max_diff_is_the_limit(config: Path, cli: Any) -> None:
    checked = configs.read(config)
    assert all(a.holds for a in measure(checked, checked.source.index(), ["cpu"], 4))
    words = ["parity", "config.yaml", "engine=dali", "--samples", "4", "--max-diff", "0"]
    assert cli(config.parent, *words, "--json", "parity.json").returncode == 1
    results = json.loads((config.parent / "parity.json").read_text())
    assert (results["engine"], results["not_compared"]) == ("dali", [])
    decode, *_, last = results["agreements"]
    assert (decode["step"], decode["psnr"], decode["holds"]) == ("decode", None, True)
    assert (last["limit"], last["holds"], last["mean"] > 0, last["images"]) == (0, False, True, 4)
