from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpupipe import config as configs

RATES = {"gpupipe": 130.0, "torchvision-pil-1": 100.0, "hand-written": 130.0}


def run_contestant(contestant: str, seconds: float) -> dict[str, Any]:
    return {"images_per_second": RATES.get(contestant, 50.0), "others_cores": 0.0}


def test_the_best_data_loader_is_measured_again() -> None:
    import recipes

    found = recipes.compare("simclr", run_contestant, rounds=3, seconds=1.0)
    assert found["against"] == "torchvision-pil-1"
    assert len(found["preliminary"]) >= 4
    assert found["ratio"]["rounds"] == [1.3] * 3
    assert found["goal"]["holds"]
    assert found["goal"]["bound"] == 1.2


def test_rand_augment_is_measured_against_dalis_own() -> None:
    import recipes

    found = recipes.compare("randaugment", run_contestant, rounds=1, seconds=1.0)
    assert (found["against"], found["preliminary"]) == ("hand-written", {})
    assert found["goal"]["bound"] == 1.0


def test_engine_cpu_has_goals_of_its_own() -> None:
    import recipes

    for recipe, bound in {"timm_a2": 4.0, "simclr": 12.0, "dino_v2": 8.0}.items():
        least = recipes._CPU_GOALS[recipe]
        found = recipes.compare(recipe, run_contestant, rounds=1, seconds=1.0, least=least)
        assert (found["goal"]["bound"], found["goal"]["holds"]) == (bound, False)


@pytest.fixture
def photo() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 200, (30, 40, 3), dtype=np.uint8) // 2 + 40
    return Image.fromarray(noise.astype(np.uint8)).resize((240, 180))


@pytest.mark.parametrize("recipe", ["torchvision_resnet50_v2", "timm_a2", "simclr"])
@pytest.mark.parametrize("decoder", ["pil", "tensor"])
def test_a_recipe_by_hand_makes_what_the_shipped_one_makes(
    recipe: str, decoder: str, photo: Image.Image, tmp_path: Path
) -> None:
    import recipe_baselines
    from torchvision.transforms.v2 import functional as F

    image = photo if decoder == "pil" else F.pil_to_tensor(photo)
    made = recipe_baselines.TRANSFORMS[recipe](decoder)(image)
    pipeline = configs.read(recipe, data={"source": "folder", "root": str(tmp_path)}).pipeline
    views = pipeline.views_of("image")
    spec = pipeline.output_spec_of(views[0] if views else "image")
    assert str(made.dtype) == f"torch.{spec.dtype}"
    assert made.shape == (*([len(views)] if views else []), 3, *spec.size)


def test_timms_policy_leaves_a_quarter_of_the_images_alone(photo: Image.Image) -> None:
    import random

    import recipe_baselines
    from torchvision.transforms.v2 import functional as F

    random.seed(0)
    small = F.pil_to_tensor(photo.resize((12, 9)))
    policy = recipe_baselines.TimmRandAugment()
    alone = sum(policy(small) is small for _ in range(400))
    assert 70 < alone < 130


@pytest.mark.parametrize("number", range(15))
def test_timms_operations_on_pil_images_are_those_on_tensors(
    number: int, photo: Image.Image
) -> None:
    """In the mean: PIL rounds, and smooths, in its own way. An operation may draw its sign."""
    import random

    import recipe_baselines
    from torchvision.transforms.v2 import functional as F

    tensor = F.pil_to_tensor(photo)
    op = recipe_baselines.TimmRandAugment().ops[number]
    random.seed(number)
    on_pil = F.pil_to_tensor(op(photo, 0.7))
    random.seed(number)
    on_tensor = op(tensor, 0.7)
    assert (on_pil != tensor).any()
    assert (on_pil.float() - on_tensor.float()).abs().mean() < 3
