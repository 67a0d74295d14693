from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe import config
from gpupipe.augment.policy_ops import OPS
from gpupipe.augment.timm_ops import op_names
from gpupipe.augment.timm_policies import RAND_OPS, read_policy
from gpupipe.steps.timm_augment import TimmAugment
from helpers import augment_draws, many_fields
from helpers.color_differences import as_gray
from helpers.reference import differences

POLICIES = [
    "rand-m7-mstd0.5-inc1",
    "rand-m9-mstd0.5",
    "rand-m6-n4-p0.8-tweights",
    "rand-t3aw",
    "original",
    "originalr",
    "v0",
    "v0r",
    "3a",
    "augmix-m5-w4",
    "augmix-d2-w2-a0.5",
]


def drawn_ops(policy: str, slot: int = 0) -> list[str]:
    drawn = augment_draws.sampled(TimmAugment(policy=policy))
    return [OPS[op] for op in drawn["op"].reshape(augment_draws.COUNT, -1)[:, slot]]


@pytest.mark.parametrize("slot", [0, 1])
def test_rand_draws_each_operation_and_applies_half(slot: int) -> None:
    expected = {name: 0.5 / len(RAND_OPS) for name in op_names(RAND_OPS)}
    assert augment_draws.fits(drawn_ops("rand-m9", slot), {**expected, "Identity": 0.5})


def test_rand_with_another_probability() -> None:
    expected = {name: 0.2 / len(RAND_OPS) for name in op_names(RAND_OPS)}
    assert augment_draws.fits(drawn_ops("rand-m9-p0.2"), {**expected, "Identity": 0.8})


@pytest.mark.parametrize("policy", ["rand-p1-n3-tweights", "rand-p1-n3-w0", "rand-p1-t3aw"])
def test_weighted_operations_are_drawn_as_numpy_does(policy: str) -> None:
    """timm calls np.random.choice without replacement."""
    read = read_policy(policy)
    assert read.weights is not None
    drawn = augment_draws.sampled(TimmAugment(policy=policy), augment_draws.RECORDED)["op"]
    ours = [tuple(OPS[op] for op in ops[:2]) for ops in drawn]
    rng, weights = np.random.default_rng(1), np.array(read.weights) / sum(read.weights)
    names = [op_names([name])[0] for name in read.ops]
    theirs = [
        tuple(names[n] for n in rng.choice(len(names), read.num_ops, replace=False, p=weights)[:2])
        for _ in range(augment_draws.RECORDED)
    ]
    idle = {"Solarize": "Identity"} if "tw" not in policy and "t3" not in policy else {}
    theirs = [tuple(idle.get(name, name) for name in pair) for pair in theirs]
    assert augment_draws.agree(ours, theirs)


def test_signs_are_drawn_half_and_half() -> None:
    drawn = augment_draws.sampled(TimmAugment(policy="rand-m9-mstd0.5-inc1"))
    for name in ("Rotate", "ShearX", "TranslateYRel"):
        values = drawn["value"][drawn["op"] == OPS.index(name)]
        assert len(values) > 1000
        assert abs((values < 0).mean() - 0.5) < 0.07
    level = np.abs(drawn["value"][drawn["op"] == OPS.index("Rotate")]) / 3.0
    assert abs(np.median(level) - 9) < 0.08
    assert level.max() == 10


@pytest.mark.parametrize("policy", ["original", "v0r", "3a"])
def test_sub_policies_are_equally_probable(policy: str) -> None:
    read = read_policy(policy)
    expected = Counter[str]()
    for sub_policy in read.sub_policies:
        name, p, _ = sub_policy[0]
        applied = op_names([name])[0]
        expected[applied] += p / len(read.sub_policies)
        expected["Identity"] += (1 - p) / len(read.sub_policies)
    assert augment_draws.fits(drawn_ops(policy), expected)


def test_chains_of_augmix_draw_from_13_operations() -> None:
    drawn = augment_draws.sampled(TimmAugment(policy="augmix-m5-w4"))
    assert drawn["op"].shape == (augment_draws.COUNT, 4, 3)
    lengths = Counter((drawn["op"][:, 1] != 0).sum(1).tolist())
    first = Counter(OPS[op] for op in drawn["op"][:, 2, 0])
    # The threshold of Solarize is above 255 if the level is below 0.04.
    assert first.pop("Identity", 0) < 0.02 * augment_draws.COUNT
    assert len(first) == 13
    assert max(first.values()) < 1.2 * augment_draws.COUNT / 13
    assert min(lengths[n] for n in (1, 2, 3)) > 0.31 * augment_draws.COUNT
    level = np.abs(drawn["value"][drawn["op"] == OPS.index("Rotate")]) / 3.0
    assert abs(level.mean() - 2.5) < 0.05
    assert 4.9 < level.max() < 5


def test_levels_of_augmix_with_a_standard_deviation_lie_around_the_magnitude() -> None:
    drawn = augment_draws.sampled(TimmAugment(policy="augmix-m5-mstd0.5"))
    level = np.abs(drawn["value"][drawn["op"] == OPS.index("Rotate")]) / 3.0
    assert abs(level.mean() - 5) < 0.05
    assert abs(level.std() - 0.5) < 0.05


@pytest.mark.parametrize("policy", POLICIES)
def test_dali_agrees_with_torch(small_gallery: Path, policy: str) -> None:
    """In the mean: see test_auto_augment.py."""
    epochs = range(1 if policy.startswith("augmix") else 2)  # of six to twelve operations an image
    found = differences(small_gallery, {"timm_augment": {"policy": policy}}, epochs=epochs)
    assert max(d.mean for d in found) < 1


def test_of_gray_images(small_gallery: Path) -> None:
    step = {"timm_augment": {"policy": "rand-m9-n4-p1-mstd0.5-inc1"}}
    found = differences(as_gray(small_gallery), step, decode={"mode": "gray"})
    assert found[0].image.shape[0] == 1
    assert max(d.mean for d in found) < 2, "half a level for each of four operations"


def test_defaults_are_timms() -> None:
    step = TimmAugment(policy="rand")
    assert (step.interpolation, step.fill) == ("bilinear", (128.0,))


def test_mistakes_are_at_their_place(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "data: {source: folder, root: /nowhere}\n"
        "pipeline:\n"
        "- decode\n"
        "- timm_augment:\n"
        "    policy: rand-m9-msdt0.5\n"
    )
    with pytest.raises(gpupipe.ConfigError) as refusal:
        config.read(file)
    (problem,) = refusal.value.problems
    assert problem.where.endswith("wrong.yaml:5:13")
    assert "'msdt0.5'; did you mean 'mstd0.5'?" in problem.what


def test_the_policy_must_be_written() -> None:
    data = {"source": "folder", "root": "/nowhere"}
    with pytest.raises(gpupipe.ConfigError, match=r"policy: missing; write 'policy: \.\.\.'"):
        config.read({"data": data, "pipeline": ["decode", "timm_augment"]})


def test_augmix_refuses_masks_and_rand_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = many_fields.make(tmp_path, monkeypatch)
    for policy, is_taken in (("rand-m9", True), ("augmix", False)):
        step = {"timm_augment": {"policy": policy, "on": ["image", "mask"]}}
        written = {"data": data, "pipeline": [*many_fields.STEPS[:2], step]}
        if is_taken:
            config.read(written)
            continue
        with pytest.raises(gpupipe.ConfigError, match=r"timm_augment cannot .* on mask: .* masks"):
            config.read(written)
