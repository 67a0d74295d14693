"""Which sample each sample of a batch is mixed with, and how much.

It is never mixed with itself, if that can be avoided. The share has the beta distribution.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import gpupipe
from batch_stage.mixing_cases import mixer_of
from gpupipe.batch_stage.stage import count_pairs_of_one_sample, find_shift
from gpupipe.batch_stage.steps.mixup import symmetric_beta
from gpupipe.sampling import draws
from gpupipe.sampling.epochs import EpochLayout

STEPS = ["mixup", "cutmix", {"random_choice": {"transforms": ["mixup", "cutmix"]}}]


@pytest.mark.parametrize(
    ("ids", "shift"),
    [
        ([], 0),
        ([3], 0),
        ([3, 4], 1),
        ([3, 4, 5], 1),
        ([3, 3], 0),
        ([3, 3, 4], 0),
        ([3, 3, 4, 4], 2),
        ([3, 4, 4, 5], 2),
        ([3, 3, 3, 4, 4, 4, 4], 0),
        ([3, 3, 4, 4, 4, 4, 5, 5], 4),
        ([3, 4, 3, 4], 1),
    ],
)
def test_the_shift_is_the_longest_run(ids: list[int], shift: int) -> None:
    assert find_shift(np.array(ids, np.int64)) == shift


@pytest.mark.parametrize("repeats", [1, 2, 3, 4])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_no_view_is_mixed_with_another_of_its_sample(repeats: int, world_size: int) -> None:
    """In all batches of an epoch on all ranks, however many views of a sample a batch has."""
    order = np.repeat(np.arange(40), repeats)
    for batch_size in (1, 3, 8, 14):
        layout = EpochLayout(len(order), batch_size, world_size, "partial", repeats > 1)
        for rank in range(world_size):
            for step in range(layout.num_steps):
                ids = order[layout.positions(step, rank)]
                assert count_pairs_of_one_sample(ids) == 0


def test_pairs_of_one_sample_are_counted() -> None:
    assert count_pairs_of_one_sample(np.array([1, 2, 1, 2, 2, 1])) == 2  # 0 with 4, and so on
    assert count_pairs_of_one_sample(np.array([1, 1, 1])) == 0, "they are not mixed"


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_views_of_one_sample_are_not_mixed(step: Any) -> None:
    """Each image holds its id, so that a mixed one has no share of a third sample."""
    ids = np.array([7, 7, 8, 8, 8, 9, 9, 9])
    values = torch.from_numpy(ids).float()
    batch = {
        "image": values.reshape(-1, 1, 1, 1).expand(-1, 3, 12, 10),
        "label": torch.from_numpy(ids - 7),
    }
    for epoch in range(4):
        labels = mixer_of(step).mix(epoch, ids, batch)["label"]
        partner = np.roll(ids, 3) - 7
        assert (labels[:, 0][(ids > 7) & (partner > 0)] == 0).all()
        share = labels[np.arange(8), ids - 7]
        assert torch.allclose(labels[np.arange(8), partner], 1 - share)
        assert torch.allclose(share, share[:1])


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("ids", [[7], [7, 7, 8]])
def test_a_batch_with_too_few_samples_is_not_mixed(step: Any, ids: list[int]) -> None:
    batch = {"image": torch.rand(len(ids), 3, 12, 10), "label": torch.tensor(ids) - 7}
    mixed = mixer_of(step).mix(0, np.array(ids), batch)
    assert torch.equal(mixed["image"], batch["image"])
    assert torch.equal(mixed["label"].argmax(1), batch["label"])
    assert mixed["label"].max(1).values.tolist() == [1.0] * len(ids)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_loader_with_repeats_mixes_different_images(
    config: dict[str, Any], world_size: int
) -> None:
    """A mean of an image with itself is the image, to the bit."""
    changes: dict[str, Any] = {
        "pipeline": ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}],
        "repeats": 4,
        "batch_size": 8,
        "last_batch": "drop",
        "shard": {"rank": 0, "world_size": world_size},
    }
    with (
        gpupipe.load(config, **changes, batch=[]) as plain,
        gpupipe.load(config, **changes, batch=["mixup"]) as mixing,
    ):
        for before, after in zip(plain, mixing, strict=True):
            assert torch.equal(before["id"], after["id"])
            assert not (before["image"] == after["image"]).flatten(1).all(1).any()


COUNT = 50_000


def distribution(x: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """The distribution function of Beta(alpha, alpha), by its power series up to 1/2."""
    low = np.minimum(x, 1 - x)
    total, factor = np.zeros_like(low), 1.0
    for n in range(200):
        total += factor * low**n / (alpha + n)
        factor *= (n + 1 - alpha) / (n + 1)
    log_beta = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha)
    below = low**alpha * total / math.exp(log_beta)
    return np.where(x <= 0.5, below, 1 - below)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 0.5, 1.0, 1.5, 2.0, 8.0])
def test_the_draws_have_the_distribution(alpha: float) -> None:
    """Kolmogorov and Smirnov's test, at a level of 0.001.

    Doubles near 1 are too far apart for a small alpha: the numbers there are left out.
    """
    u = draws.uniform(3, 1, np.arange(COUNT), draws.stream("batch: mixup"), 2)
    x = np.sort(symmetric_beta(u, alpha))
    ranks = np.arange(COUNT + 1) / COUNT
    below = x[x < 1 - 1e-12]
    expected = distribution(below, alpha)
    above, under = ranks[1 : len(below) + 1] - expected, expected - ranks[: len(below)]
    distance = max(above.max(), under.max())
    assert distance < 1.95 / math.sqrt(COUNT)


def test_the_distribution_function_of_the_test_is_that_of_closed_forms() -> None:
    x = np.linspace(0.001, 0.999, 99)
    assert np.allclose(distribution(x, 1.0), x)
    assert np.allclose(distribution(x, 0.5), 2 / np.pi * np.arcsin(np.sqrt(x)))
    assert np.allclose(distribution(x, 2.0), 3 * x**2 - 2 * x**3)


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.2, 1.0, 1e6, 1e300])
def test_every_draw_is_a_share_whatever_the_uniforms(alpha: float) -> None:
    ends = np.array([0.0, 2.0**-53, 0.25, 0.5, 0.75, 1 - 2.0**-53])
    u = np.stack([axis.ravel() for axis in np.meshgrid(ends, ends)], axis=1)
    with np.errstate(all="raise", under="ignore"):
        x = symmetric_beta(u, alpha)
    assert np.isfinite(x).all()
    assert (x >= 0).all()
    assert (x <= 1).all()
