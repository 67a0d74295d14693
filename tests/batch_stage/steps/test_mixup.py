"""mixup, against torchvision.transforms.v2.MixUp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from batch_stage.mixing_cases import BYTES, IMAGE, MASK, made_batch, stage_of
from gpupipe.batch_stage.mixer import to_soft_labels
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.sampling import draws

TOLERANCE = {
    torch.float64: 1e-15,
    torch.float32: 2e-7,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
"""The largest difference of values from 0 to 1: torchvision rounds three times, and this once."""


def both(
    lam: float, batch: dict[str, torch.Tensor]
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return images and labels as mixup makes them, and as torchvision does."""
    image, labels = batch["image"], batch["label"]
    p = {"lam": lam, "shift": int(len(labels) > 1)}
    done, soft = Mixup().torch({"image": image}, to_soft_labels(labels, 4), p)
    reference = v2.MixUp(num_classes=4)
    params = {"lam": lam, "labels": labels, "batch_size": len(labels)}
    return (done["image"], soft), (
        reference.transform(image, params),
        reference.transform(labels, params),
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_as_torchvision(dtype: torch.dtype, count: int) -> None:
    batch = made_batch(count, dtype)
    before = batch["image"].clone()
    for lam in (0.0, 0.3, 0.5, 0.77, 1.0):
        (image, labels), (expected_image, expected_labels) = both(lam, batch)
        assert (image.shape, image.dtype) == (batch["image"].shape, dtype)
        assert float((image - expected_image).abs().max()) <= TOLERANCE[dtype], lam
        assert labels.dtype == torch.float32
        assert torch.allclose(labels, expected_labels, atol=2e-7, rtol=0), lam
        assert torch.allclose(labels.sum(1), torch.ones(count)), lam
        assert torch.equal(batch["image"], before), "the engine's batch is not changed"


def test_a_batch_of_one_sample_stays_as_it_is() -> None:
    batch = made_batch(1)
    (image, labels), _ = both(0.37, batch)
    assert torch.equal(image, batch["image"])
    assert labels.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_the_memory_format_stays() -> None:
    batch = made_batch()
    batch["image"] = batch["image"].to(memory_format=torch.channels_last)
    (image, _), (expected, _) = both(0.37, batch)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(image, expected, atol=2e-7, rtol=0)


def test_the_share_has_the_moments_of_its_distribution() -> None:
    u = draws.uniform(1, 0, np.arange(20_000), 5, Mixup.num_uniforms)
    lam = Mixup(alpha=0.2).sample(u)["lam"]
    assert abs(lam.mean() - 0.5) < 0.01
    assert abs(lam.var() - 1 / (4 * (2 * 0.2 + 1))) < 0.005


def test_the_default_is_torchvisions() -> None:
    assert Mixup().alpha == v2.MixUp(num_classes=4).alpha


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_it_takes_every_float(dtype: str) -> None:
    Mixup().check({"image": Spec.of_array(dtype, (3, 12, 10), "CHW")})


@pytest.mark.parametrize(
    ("step", "fields", "words"),
    [
        ("mixup", {"image": BYTES}, ("c.yaml: batch.0: mixup", "'image' is uint8", "to_dtype")),
        (
            {"mixup": {"on": ["image", "mask"]}},
            {"image": IMAGE, "mask": MASK},
            ("'mask' is a mask", "out of 'on:'", "cutmix"),
        ),
        ({"mixup": {"alpha": 0}}, {"image": IMAGE}, ("mixup.alpha is 0", "above 0")),
        ({"mixup": {"alpha": True}}, {"image": IMAGE}, ("alpha is true", "a number")),
        ({"mixup": {"num_classes": 0}}, {"image": IMAGE}, ("num_classes is 0", "at least 1")),
        ({"mixup": {"alhpa": 1}}, {"image": IMAGE}, ("alhpa", "did you mean 'alpha'?")),
    ],
)
def test_refusals(step: Any, fields: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage_of(step, fields=fields)
    assert all(word in str(error.value) for word in words), error.value
