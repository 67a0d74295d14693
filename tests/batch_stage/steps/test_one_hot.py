"""one_hot, against the label smoothing of torch and timm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from batch_stage.mixing_cases import BYTES, made_batch, mixer_of, stage_of
from gpupipe.errors import ConfigError


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_formula_of_timm(smoothing: float) -> None:
    """timm.data.mixup.one_hot: on = 1 - smoothing + smoothing / classes, off = the latter."""
    batch = made_batch()
    mixed = mixer_of({"one_hot": {"label_smoothing": smoothing}}).mix(0, np.arange(5), batch)
    off = smoothing / 4
    expected = torch.full((5, 4), off)
    expected[torch.arange(5), batch["label"]] = 1 - smoothing + off
    assert torch.allclose(mixed["label"], expected)
    assert torch.equal(mixed["image"], batch["image"])


def test_without_parameters_nothing_is_smoothed() -> None:
    batch = made_batch()
    soft = mixer_of("one_hot").mix(0, np.arange(5), batch)["label"]
    assert torch.equal(soft, torch.nn.functional.one_hot(batch["label"], 4).float())


def test_the_loss_is_that_of_torchs_label_smoothing() -> None:
    batch, scores = made_batch(), torch.randn(5, 4)
    soft = mixer_of({"one_hot": {"label_smoothing": 0.2}}).mix(0, np.arange(5), batch)["label"]
    expected = torch.nn.functional.cross_entropy(scores, batch["label"], label_smoothing=0.2)
    assert torch.allclose(torch.nn.functional.cross_entropy(scores, soft), expected)


@pytest.mark.parametrize("step", ["mixup", "cutmix"])
def test_smoothing_before_and_after_mixing_is_the_same(step: str) -> None:
    batch, smoothing = made_batch(), {"one_hot": {"label_smoothing": 0.1}}
    before = mixer_of(smoothing, step).mix(0, np.arange(5), batch)
    after = mixer_of(step, smoothing).mix(0, np.arange(5), batch)
    assert torch.allclose(before["label"], after["label"])
    assert torch.equal(before["image"], after["image"])
    assert not torch.allclose(before["label"], mixer_of(step).mix(0, np.arange(5), batch)["label"])


def test_more_classes_than_the_data_has() -> None:
    mixed = mixer_of({"one_hot": {"num_classes": 7}}).mix(0, np.arange(5), made_batch())
    assert mixed["label"].shape == (5, 7)
    assert mixed["label"].argmax(1).tolist() == [0, 1, 2, 3, 0]


def test_any_dtype_is_taken_and_smoothing_is_a_share() -> None:
    assert stage_of("one_hot", fields={"image": BYTES}).entries
    with pytest.raises(ConfigError, match=r"one_hot\.label_smoothing is 1\.5.*at most 1"):
        stage_of({"one_hot": {"label_smoothing": 1.5}})
