"""random_choice of the batch stage: one step for each batch, by its weights."""

from typing import Any

import numpy as np
import pytest
import torch

from batch_stage.mixing_cases import BYTES, made_batch, mixer_of, stage_of
from gpupipe.batch_stage.steps.random_choice import RandomStepChoice
from gpupipe.errors import ConfigError
from gpupipe.sampling import draws


def choice_of(weights: list[float] | None) -> RandomStepChoice:
    parameters = {"transforms": ["mixup", "cutmix", "one_hot"], "p": weights}
    step = stage_of({"random_choice": {k: v for k, v in parameters.items() if v}}).entries[0].step
    assert isinstance(step, RandomStepChoice)
    return step


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0], [0.0, 3.0, 1.0]])
def test_the_choices_have_their_probabilities(weights: list[float] | None) -> None:
    step = choice_of(weights)
    u = draws.uniform(1, 0, np.arange(20_000), 5, step.num_uniforms)
    counts = np.bincount(step.sample(u)["choice"], minlength=3)
    p = np.array(weights or [1.0] * 3)
    expected = p / p.sum() * 20_000
    assert (counts[expected == 0] == 0).all()
    used = expected > 0
    square = ((counts - expected)[used] ** 2 / expected[used]).sum()
    assert square < 13.8, "chi-square of 2 degrees, 0.001"


def test_a_batch_gets_its_own_step() -> None:
    """Over 30 batches: some are mixed everywhere, some in a box, some not at all."""
    mixer = mixer_of({"random_choice": {"transforms": ["mixup", "cutmix", "one_hot"]}})
    batch = made_batch(4)
    batch["image"] = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 3, 12, 10)
    kinds = set()
    for first in range(30):
        mixed = mixer.mix(0, np.arange(first, first + 4), batch)
        is_whole = bool((mixed["image"] == mixed["image"].round()).all())
        if torch.equal(mixed["image"], batch["image"]):
            kinds.add("left alone")
            assert mixed["label"].max(1).values.tolist() == [1.0] * 4
        elif is_whole:
            kinds.add("a box")
            share = float((mixed["image"][1] == 1).float().mean())
            assert torch.allclose(mixed["label"][1, 1], torch.tensor(share))
        else:
            kinds.add("a mean")
            assert len(mixed["image"][1].unique()) == 1
            assert torch.allclose(mixed["label"][1, 1], mixed["image"][1, 0, 0, 0])
    assert kinds == {"left alone", "a box", "a mean"}


@pytest.mark.parametrize(
    ("parameters", "fields", "words"),
    [
        ({"transforms": []}, None, ("transforms is []", "a list of steps")),
        ({}, None, ("transforms: missing",)),
        ({"transforms": ["mixup"], "p": [1, 2]}, None, ("2 numbers for 1 steps",)),
        ({"transforms": ["mixup"], "p": [0]}, None, ("no number above 0",)),
        ({"transforms": ["mixup"], "p": [-1]}, None, ("p.0 is -1", "at least 0")),
        ({"transforms": ["mixpu"]}, None, ("unknown step 'mixpu'", "did you mean 'mixup'?")),
        ({"transforms": [{"mixup": {"alpha": 0}}]}, None, ("mixup.alpha is 0",)),
        (
            {"transforms": [{"mixup": {"on": "image"}}]},
            None,
            ("mixup.on", "beside 'transforms'"),
        ),
        (
            {"transforms": ["cutmix", "mixup"]},
            {"image": BYTES},
            ("random_choice cannot stand here: mixup: it needs floats",),
        ),
    ],
)
def test_refusals(parameters: Any, fields: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage_of({"random_choice": parameters}, fields=fields)
    assert all(word in str(error.value) for word in words), error.value
