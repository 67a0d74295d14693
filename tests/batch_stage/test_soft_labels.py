"""Soft labels: four shares of a batch say all that one mixing step makes of one-hot labels."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.batch_stage.batch_step import BatchStep
from gpupipe.batch_stage.soft_labels import MixLabels, mix_one_hot, to_soft_labels
from gpupipe.batch_stage.steps.mixup import Cutmix, Mixup, OneHot


def list_steps(mixing: str, smoothing: float, lam: float, classes: int, shift: int) -> Any:
    """Return what a mixing step and a smoothing step do to labels."""
    steps: dict[str, BatchStep] = {"mixup": Mixup(), "cutmix": Cutmix(), "none": OneHot()}
    p = {"lam": lam, "x": 0.3, "y": 0.8, "shift": shift}
    each = steps[mixing], OneHot(label_smoothing=smoothing)
    prepared = [step.prepare({"image": (12, 10)}, classes, p).labels for step in each]
    return [labels for labels in prepared if labels is not None]


def run_each(numbers: Any, classes: int, steps: list[MixLabels]) -> torch.Tensor:
    labels = to_soft_labels(torch.from_numpy(numbers), classes)
    for step in steps:
        labels = step(labels)
    return labels


@pytest.mark.parametrize("mixing", ["mixup", "cutmix", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("classes", [1, 2, 100, 1000])
def test_the_labels_equal_those_of_each_step_after_the_other(
    mixing: str, smoothing: float, classes: int
) -> None:
    rng = np.random.default_rng(classes)
    for count, shift in [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (23, 4), (128, 1), (128, 64)]:
        numbers = rng.integers(0, classes, count)
        for lam in [0.0, 1.0, 0.5, 1e-9, *rng.random(8)]:
            steps = list_steps(mixing, smoothing, float(lam), classes, shift)
            found = mix_one_hot(numbers, classes, shift, steps)
            assert found.dtype == torch.float32
            assert torch.equal(found, run_each(numbers, classes, steps)), (count, shift, lam)


def test_a_sample_of_the_class_of_its_partner_has_all_of_it() -> None:
    numbers = np.array([2, 2, 0, 0])
    steps = list_steps("mixup", 0.0, 0.3, 3, 1)
    assert mix_one_hot(numbers, 3, 1, steps)[[1, 3]].tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("label", [-1, 4, -(2**63)])
def test_a_label_that_is_no_class(label: int) -> None:
    numbers = np.array([0, label, 3])
    for convert in (
        partial(mix_one_hot, numbers, 4, 0, []),
        partial(to_soft_labels, torch.from_numpy(numbers), 4),
    ):
        with pytest.raises(IndexError, match=f"^{label}$"):
            convert()


def test_labels_are_float32_whatever_the_default_of_torch_is() -> None:
    # Shares are cached, and no other test has a shift of 5.
    steps = list_steps("mixup", 0.1, 0.25, 3, 5)
    torch.set_default_dtype(torch.float64)
    try:
        mixed = mix_one_hot(np.array([0, 1, 2, 0, 1, 2]), 3, 5, steps)
    finally:
        torch.set_default_dtype(torch.float32)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, run_each(np.array([0, 1, 2, 0, 1, 2]), 3, steps))
