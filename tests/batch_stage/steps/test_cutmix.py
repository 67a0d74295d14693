"""cutmix, against torchvision.transforms.v2.CutMix, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from batch_stage.mixing_cases import BYTES, IMAGE, MASK, made_batch, mixer_of, stage_of
from gpupipe.batch_stage.mixer import to_soft_labels
from gpupipe.batch_stage.steps.cutmix import Cutmix, find_box
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, ShapeError
from gpupipe.sampling import draws

SMALL = Spec.of_array("float32", (3, 6, 5), "CHW")
UNKNOWN = Spec.of_array("float32", (3, None, None), "CHW")
SERIES = Spec.of_array("float32", (2, 50), "CL")


@pytest.mark.parametrize(("height", "width"), [(12, 10), (7, 31), (1, 1)])
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_the_box_is_torchvisions(height: int, width: int, alpha: float) -> None:
    """torchvision's own draws, repeated, lead to its box."""
    reference = v2.CutMix(alpha=alpha, num_classes=4)
    for seed in range(50):
        torch.manual_seed(seed)
        expected = reference.make_params([torch.zeros(2, 3, height, width)])
        torch.manual_seed(seed)
        lam = float(reference._dist.sample(()))
        x, y = (float(torch.randint(n, size=(1,)) + 0.5) / n for n in (width, height))
        box, outside = find_box(height, width, {"lam": lam, "x": x, "y": y})
        assert box == expected["box"]
        assert outside == expected["lam_adjusted"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_as_torchvision(dtype: torch.dtype, count: int) -> None:
    batch = made_batch(count, dtype)
    for x, y in ((0.1, 0.2), (0.5, 0.5), (0.99, 0.0)):
        image, labels = batch["image"], batch["label"]
        before = image.clone()
        p = {"lam": 0.6, "x": x, "y": y, "shift": int(count > 1)}
        done, soft = Cutmix().torch({"image": image}, to_soft_labels(labels, 4), p)
        box, outside = find_box(12, 10, p)
        reference = v2.CutMix(num_classes=4)
        params = {"box": box, "lam_adjusted": outside, "labels": labels, "batch_size": count}
        assert 0 < outside < 1
        assert torch.equal(done["image"], reference.transform(image, params))
        assert torch.equal(image, before), "the engine's batch is not changed"
        expected = reference.transform(labels, params)
        assert torch.allclose(soft, expected, atol=2e-7, rtol=0)
        if count == 1:
            assert torch.equal(done["image"], image)
            assert torch.equal(soft, to_soft_labels(labels, 4))


def test_the_area_has_the_mean_of_its_distribution_where_no_border_cuts_it_off() -> None:
    """With centers in the middle the box has 1 - lam of the area, in whole pixels."""
    step = Cutmix(alpha=1.0)
    drawn = step.sample(draws.uniform(1, 0, np.arange(2000), 5, step.num_uniforms))
    outside = [find_box(1000, 1000, {"lam": v, "x": 0.5, "y": 0.5})[1] for v in drawn["lam"]]
    assert np.abs(np.array(outside) - drawn["lam"]).max() < 0.005
    for name in "xy":
        counts = np.histogram(drawn[name], bins=10, range=(0, 1))[0]
        assert ((counts - 200) ** 2 / 200).sum() < 27.9, "chi-square of 9 degrees, 0.001"


def test_area_and_center_are_drawn_independently() -> None:
    step = Cutmix(alpha=1.0)
    drawn = step.sample(draws.uniform(1, 0, np.arange(4000), 5, step.num_uniforms))
    assert np.abs(np.corrcoef(list(drawn.values())) - np.eye(3)).max() < 0.08
    for name in ("x", "y"):
        assert np.abs(np.quantile(drawn[name], [0, 0.5, 1]) - [0, 0.5, 1]).max() < 0.04


def test_a_mask_gets_the_same_box() -> None:
    mixer = mixer_of({"cutmix": {"on": ["image", "mask"]}}, fields={"image": IMAGE, "mask": MASK})
    batch = made_batch()
    batch["mask"] = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 1, 12, 10)
    batch["image"] = batch["mask"].float().expand(5, 3, 12, 10)
    mixed = mixer.mix(0, np.arange(5), batch)
    assert len(mixed["mask"].unique()) == 5
    assert torch.equal(mixed["image"][:, :1], mixed["mask"].float())
    assert not torch.equal(mixed["mask"], batch["mask"])


def test_fields_whose_sizes_differ_in_a_batch() -> None:
    """The config cannot know the sizes, since no step fixes them."""
    mixer = mixer_of(
        {"cutmix": {"on": ["image", "other"]}}, fields={"image": UNKNOWN, "other": UNKNOWN}
    )
    batch = made_batch() | {"other": torch.zeros(5, 3, 6, 5)}
    with pytest.raises(ShapeError, match=r"c\.yaml: batch\.0: cutmix: .*image: 12x10, other: 6x5"):
        mixer.mix(0, np.arange(5), batch)


@pytest.mark.parametrize(
    ("step", "fields", "words"),
    [
        (
            {"cutmix": {"on": ["image", "other"]}},
            {"image": IMAGE, "other": SMALL},
            ("image: 12x10, other: 6x5", "one size"),
        ),
        ({"cutmix": {}}, {"image": SERIES}, ("'image' has the layout CL", "mixup")),
        ({"cutmix": {"alpha": -1}}, {"image": IMAGE}, ("cutmix.alpha is -1", "above 0")),
    ],
)
def test_refusals(step: Any, fields: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage_of(step, fields=fields)
    assert all(word in str(error.value) for word in words), error.value


def test_bytes_and_fields_of_one_size_are_taken() -> None:
    assert stage_of("cutmix", fields={"image": BYTES}).entries
    fields = {"image": IMAGE, "other": BYTES}
    assert stage_of({"cutmix": {"on": ["image", "other"]}}, fields=fields).entries
