from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import gpupipe
from gpupipe import config
from gpupipe.augment.policy_ops import apply_op
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from helpers import augment_draws, many_fields
from helpers.augment_draws import names_and_magnitudes, rounded
from helpers.color_differences import as_gray
from helpers.reference import differences, emitted, load

POLICIES = ["imagenet", "cifar10", "svhn"]


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_are_torchvisions_of_auto_augment(policy: str) -> None:
    drawn = augment_draws.sampled(
        AutoAugment.model_validate({"policy": policy}), augment_draws.RECORDED
    )
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.AutoAugment, policy=v2.AutoAugmentPolicy(policy))
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


@pytest.mark.parametrize("policy", POLICIES)
def test_dali_agrees_with_torch_in_auto_augment(small_gallery: Path, policy: str) -> None:
    """A level of the first operation becomes up to 64 where the second one posterizes, and one of
    a histogram moves all levels that equalize makes: the mean is what stays small.
    """
    found = differences(small_gallery, {"auto_augment": {"policy": policy}}, epochs=range(3))
    assert max(d.mean for d in found) < 1


def test_the_policy_is_imagenets_by_default() -> None:
    assert AutoAugment().policy == "imagenet"
    assert AutoAugment().fill is None
    assert AutoAugment().interpolation == "nearest"


def test_an_edge_of_the_draws() -> None:
    """The least and the greatest draws are pairs and signs that exist."""
    step = AutoAugment()
    drawn = step.sample(np.array([[0.0] * 5, [np.nextafter(1.0, 0.0)] * 5]))
    assert drawn["op"][0].all()
    assert not drawn["op"][1].any()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"'imagnet'.*'imagenet', 'cifar10' or 'svhn'"):
        config.read(
            {"data": _DATA, "pipeline": ["decode", {"auto_augment": {"policy": "imagnet"}}]}
        )


def test_it_stands_before_normalize() -> None:
    steps = [
        "decode",
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": 0.5, "std": 0.5}},
        "auto_augment",
    ]
    with pytest.raises(gpupipe.ConfigError, match=r"pipeline\.3: auto_augment .*before 'normal"):
        config.read({"data": _DATA, "pipeline": steps})


@pytest.mark.parametrize("channels", [2, 4])
def test_it_takes_gray_and_rgb(channels: int) -> None:
    for taken in (1, 3):
        given = Spec.of_image(taken)
        assert AutoAugment().infer_spec(given) == given
    with pytest.raises(StepIncompatibleError, match=f"1 or 3 channels.*{channels}"):
        AutoAugment().infer_spec(Spec.of_image(channels))


def test_fill_has_a_number_per_channel() -> None:
    step = AutoAugment.model_validate({"fill": [1, 2]})
    with pytest.raises(StepIncompatibleError, match="fill has 2 numbers"):
        step.infer_spec(Spec.of_image(3))


_DATA = {"source": "folder", "root": "/nowhere"}


@pytest.mark.parametrize(
    "options", [{}, {"num_ops": 1, "magnitude": 0, "num_magnitude_bins": 2}, {"magnitude": 30}]
)
def test_draws_are_torchvisions_of_rand_augment(options: dict[str, int]) -> None:
    drawn = augment_draws.sampled(RandAugment.model_validate(options), augment_draws.RECORDED)
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.RandAugment, **options)
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


def test_another_magnitude_has_another_distribution() -> None:
    """So the test above can fail."""
    first, second = (
        augment_draws.sampled(RandAugment(magnitude=magnitude), augment_draws.RECORDED)
        for magnitude in (9, 10)
    )
    both = [map(augment_draws.names_and_magnitudes, d["op"], d["value"]) for d in (first, second)]
    assert not augment_draws.agree(*map(augment_draws.rounded, both))


@pytest.mark.parametrize("options", [{}, {"interpolation": "bilinear", "fill": [124, 116, 104]}])
def test_dali_agrees_on_rand_augment(small_gallery: Path, options: dict[str, Any]) -> None:
    """In the mean, as auto_augment does."""
    found = differences(small_gallery, {"rand_augment": options}, epochs=range(3))
    assert max(d.mean for d in found) < 1


def test_of_gray_images(small_gallery: Path) -> None:
    found = differences(
        as_gray(small_gallery), {"rand_augment": {"num_ops": 4}}, decode={"mode": "gray"}
    )
    assert found[0].image.shape[0] == 1
    assert max(d.mean for d in found) < 1


def test_no_operation_changes_nothing(small_gallery: Path) -> None:
    found = differences(small_gallery, {"rand_augment": {"num_ops": 0}})
    assert not any(d.most for d in found)
    assert RandAugment(num_ops=0).num_uniforms == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"magnitude": 31}, "magnitude is 31, .* at most 30"),
        ({"magnitude": 5, "num_magnitude_bins": 5}, "magnitude is 5, .* at most 4"),
        ({"magnitude": -1}, "magnitude is -1, .* at least 0"),
        ({"magnitude": 8.5}, "magnitude is 8.5, .* whole number"),
        ({"num_magnitude_bins": 1}, "num_magnitude_bins is 1, .* at least 2"),
        ({"num_ops": -1}, "num_ops is -1, .* at least 0"),
        ({"interpolation": "bicubic"}, "interpolation is 'bicubic', .*'bilinear'"),
        ({"magnitud": 3}, "unknown key; did you mean 'magnitude'"),
    ],
)
def test_bad_parameters_are_refused(options: dict[str, Any], message: str) -> None:
    data = {"source": "folder", "root": "/nowhere"}
    with pytest.raises(gpupipe.ConfigError, match=message):
        config.read({"data": data, "pipeline": ["decode", {"rand_augment": options}]})


@pytest.mark.parametrize("num_magnitude_bins", [31, 5])
def test_trivial_draws_have_torchvisions_distribution(
    num_magnitude_bins: int,
) -> None:
    drawn = augment_draws.sampled(
        TrivialAugmentWide(num_magnitude_bins=num_magnitude_bins), augment_draws.RECORDED
    )
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.TrivialAugmentWide, num_magnitude_bins=num_magnitude_bins)
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


@pytest.mark.parametrize("options", [{}, {"interpolation": "bilinear", "fill": 7}])
def test_dali_agrees_with_torch_about_one_operation(
    small_gallery: Path, options: dict[str, Any]
) -> None:
    """One operation: its own tolerance, a level, but at borders and between nearest pixels."""
    for d in differences(small_gallery, {"trivial_augment_wide": options}, epochs=range(4)):
        assert float((d.levels > 1).double().mean()) < 0.03
        assert d.mean < 0.5


def test_in_a_batch_each_sample_has_its_own_operation(faces: Path) -> None:
    """The samples of one batch and of batches of one are the same."""
    steps = [{"trivial_augment_wide": {}}]
    whole, single = (
        {
            int(i): image
            for batch in load(faces, *steps, batch_size=size)
            for i, image in zip(batch["id"], batch["image"], strict=True)
        }
        for size in (20, 1)
    )
    assert len(whole) == 60
    assert all(whole[i].equal(single[i]) for i in whole)


def test_all_that_moves_pixels_is_one_operator(small_gallery: Path) -> None:
    with load(small_gallery, "trivial_augment_wide") as loader:
        assert emitted(loader).count("experimental.warp_perspective") == 1


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
    """In the mean: see test_auto_augment.py."""
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
def test_bad_parameters_of_aug_mix_are_refused(options: dict[str, Any], message: str) -> None:
    data = {"source": "folder", "root": "/nowhere"}
    with pytest.raises(gpupipe.ConfigError, match=message):
        config.read({"data": data, "pipeline": ["decode", {"aug_mix": options}]})
