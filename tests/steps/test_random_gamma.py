from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_gamma import RandomGamma
from helpers.color_differences import EXACT, drawn, is_share, is_uniform, most


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("gamma", [0.3, 2.2])
def test_levels_are_torchvisions(small_gallery: Path, gray: bool, gamma: float) -> None:
    assert most(small_gallery, "random_gamma", gray=gray, p=1, gamma=[gamma, gamma]) <= 1


def test_the_cpu_engines_levels_are_torchvisions_but_for_few() -> None:
    gammas = np.concatenate([np.linspace(0, 4, 200), [0.5, 1.0, 2.0, 3.0]])
    levels = np.arange(256, dtype=np.uint8)[None, :, None]
    tracer = Tracer([(1, 256)] * len(gammas), find_rules(), Spec.of_image(1))
    tracer.color("adjust_gamma", gammas)
    program = tracer.program()
    own = torch.stack([as_tensor(program.run(levels, n)) for n in range(len(gammas))])
    image = torch.from_numpy(levels).permute(2, 0, 1)
    apart = (
        own.int() - torch.stack([F.adjust_gamma(image, gamma) for gamma in gammas]).int()
    ).abs()
    assert apart.max() <= 1 and int((apart > 0).sum()) <= 2


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_gamma", "float32", p=1, gamma=[0.4, 3]) <= EXACT


def test_gamma_means_what_torchvision_means() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 9, 12), np.uint8))
    p = {"runs": np.int32(1), "gamma": np.float64(1.7)}
    assert torch.equal(RandomGamma(p=1).torch(image, p), F.adjust_gamma(image, 1.7))
    assert torch.equal(RandomGamma().torch(image, p | {"runs": np.int32(0)}), image)


def test_what_is_drawn() -> None:
    values = drawn("random_gamma", gamma=[0.5, 2], p=0.3)
    assert is_share(values["runs"], 0.3)
    assert is_uniform(values["gamma"], 0.5, 2.0)


@pytest.mark.parametrize("gamma", [[-0.1, 1], [2, 1], 1.5, [0.5, float("inf")]])
def test_other_ranges_are_refused(gamma: object) -> None:
    with pytest.raises(pydantic.ValidationError):
        RandomGamma(gamma=gamma)
