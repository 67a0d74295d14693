from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from batch_stage.mixing_cases import BYTES, IMAGE, MASK, made_batch, mixer_of, stage_of
from gpupipe.batch_stage.soft_labels import to_soft_labels
from gpupipe.batch_stage.steps.mixup import Cutmix, Mixup, find_box
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, ShapeError
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
def test_as_torchvision_of_mixup(dtype: torch.dtype, count: int) -> None:
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
def test_refusals_of_mixup(step: Any, fields: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage_of(step, fields=fields)
    assert all(word in str(error.value) for word in words), error.value


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
def test_as_torchvision_of_cutmix(dtype: torch.dtype, count: int) -> None:
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
def test_refusals_of_cutmix(step: Any, fields: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        stage_of(step, fields=fields)
    assert all(word in str(error.value) for word in words), error.value


def test_bytes_and_fields_of_one_size_are_taken() -> None:
    assert stage_of("cutmix", fields={"image": BYTES}).entries
    fields = {"image": IMAGE, "other": BYTES}
    assert stage_of({"cutmix": {"on": ["image", "other"]}}, fields=fields).entries


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
