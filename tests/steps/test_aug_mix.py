from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import gpupipe
from gpupipe import config
from gpupipe.augment.policy_ops import apply_op
from gpupipe.steps.aug_mix import AugMix
from helpers import augment_draws, many_fields
from helpers.augment_draws import names_and_magnitudes, rounded
from helpers.reference import differences


@pytest.mark.parametrize("options", [{}, {"severity": 10, "all_ops": False}, {"chain_depth": 2}])
def test_chains_have_torchvisions_distribution(options: dict[str, Any]) -> None:
    """Of one chain: the operations of all are drawn alike."""
    step = AugMix.model_validate({"mixture_width": 1, **options})
    drawn = augment_draws.sampled(step, augment_draws.RECORDED)
    ours = list(map(names_and_magnitudes, drawn["op"][:, 0], drawn["value"][:, 0]))
    theirs = augment_draws.recorded(v2.AugMix, mixture_width=1, **options)
    assert augment_draws.agree(map(len, ours), map(len, theirs))
    for part in (slice(1), slice(-1, None)):
        first_or_last = [rounded(sample[part] for sample in drawn) for drawn in (ours, theirs)]
        assert augment_draws.agree(*first_or_last)


def test_each_chain_is_drawn_for_itself() -> None:
    drawn = augment_draws.sampled(AugMix(), 2000)["op"]
    assert drawn.shape == (2000, 3, 3)
    assert (drawn[:, :, 0] != 0).all()
    for a, b in ((0, 1), (1, 2)):
        assert 0.03 < (drawn[:, a, 0] == drawn[:, b, 0]).mean() < 0.13  # of 13 operations


@pytest.mark.parametrize("alpha", [0.3, 1.0, 4.0])
def test_weights_have_torchs_distribution(alpha: float) -> None:
    """The greatest distance of the cumulative distributions (Kolmogorov and Smirnov's test)."""
    weight = augment_draws.sampled(AugMix(alpha=alpha, mixture_width=4))["weight"]
    torch.manual_seed(0)
    shares = torch._sample_dirichlet(torch.full((len(weight), 2), alpha))
    among = torch._sample_dirichlet(torch.full((len(weight), 4), alpha))
    theirs = torch.cat([shares[:, :1], among * shares[:, 1:]], 1).numpy()
    np.testing.assert_allclose(weight.sum(1), 1)
    for ours, other in zip(weight.T, theirs.T, strict=True):
        points = np.sort(np.concatenate([ours, other]))
        both = [np.searchsorted(np.sort(x), points, side="right") / len(x) for x in (ours, other)]
        assert np.abs(both[0] - both[1]).max() < 1.95 * np.sqrt(2 / len(weight))  # once in 1,000


def test_it_mixes_as_torchvision(small_gallery: Path) -> None:
    """torchvision's class with the draws of the step."""
    step = AugMix()
    drawn = augment_draws.sampled(step, 5)

    class Drawn(v2.AugMix):
        """Takes its draws from `drawn`, in the order in which torchvision's forward needs them."""

        def __init__(self, n: int) -> None:
            super().__init__()
            weight = drawn["weight"][n]
            among = weight[1:] / weight[1:].sum()
            self.weights = [torch.tensor([[weight[0], 1 - weight[0]]]), torch.tensor(among)[None]]
            self.ops = [
                (op, value)
                for chain in zip(drawn["op"][n], drawn["value"][n], strict=True)
                for op, value in zip(*chain, strict=True)
            ]
            self.chain_depth = 3

        def _sample_dirichlet(self, params: torch.Tensor) -> torch.Tensor:
            return self.weights.pop(0).float()

        def _apply_image_or_video_transform(self, image: Any, *args: Any, **kwargs: Any) -> Any:
            op, value = self.ops.pop(0)
            return apply_op(image[0], int(op), float(value), step.warping)[None]

    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8)
    for n in range(5):
        mixed = step.torch(image, {name: values[n] for name, values in drawn.items()})
        assert (mixed.int() - Drawn(n)(image).int()).abs().max() <= 1


@pytest.mark.parametrize(
    "options", [{}, {"mixture_width": 1, "chain_depth": 1}, {"interpolation": "nearest"}]
)
def test_dali_agrees_with_torch(small_gallery: Path, options: dict[str, Any]) -> None:
    """In the mean: see test_rand_augment.py."""
    found = differences(small_gallery, {"aug_mix": options})
    assert max(d.mean for d in found) < 1


def test_sharp_masks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = many_fields.make(tmp_path, monkeypatch)
    steps = [*many_fields.STEPS[:2], {"aug_mix": {"on": ["image", "mask"]}}]
    with pytest.raises(gpupipe.ConfigError, match=r"aug_mix cannot stand here on mask: .* masks"):
        config.read({"data": data, "pipeline": steps})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"severity": 0}, "severity is 0, .* at least 1"),
        ({"severity": 11}, "severity is 11, .* at most 10"),
        ({"chain_depth": 0}, "chain_depth is 0: write -1"),
        ({"mixture_width": 0}, "mixture_width is 0, .* at least 1"),
        ({"alpha": 0}, r"alpha is 0, .* at least 0\.05"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    data = {"source": "folder", "root": "/nowhere"}
    with pytest.raises(gpupipe.ConfigError, match=message):
        config.read({"data": data, "pipeline": ["decode", {"aug_mix": options}]})
