from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe import config
from gpupipe.augment.policy_ops import OPS
from gpupipe.augment.timm_policies import RAND_OPS, UNIFORM, op_names, read_policy
from gpupipe.steps.timm_augment import TimmAugment, draw_levels, get_ops
from helpers import augment_draws, many_fields
from helpers.color_differences import as_gray
from helpers.full_product import IS_FULL
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
    names = [op_names((name,))[0] for name in read.ops]
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
        applied = op_names((name,))[0]
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
    epochs = range(2 if IS_FULL and not policy.startswith("augmix") else 1)
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


LEVELS = [
    ("Rotate", 8, ("Rotate", 24.0)),
    ("ShearX", 4, ("ShearX", 0.12)),
    ("ShearY", 10, ("ShearY", 0.3)),
    ("TranslateXRel", 9, ("TranslateXRel", 0.405)),
    ("TranslateYRel", 5, ("TranslateYRel", 0.225)),
    ("TranslateXRelMix", 10, ("TranslateXRel", 0.3)),
    ("TranslateYRelMix", 5, ("TranslateYRel", 0.15)),
    ("Posterize", 7, ("Posterize", 2)),
    ("PosterizeIncreasing", 7, ("Posterize", 2)),
    ("PosterizeIncreasing", 2, ("Posterize", 4)),
    ("PosterizeOriginal", 8, ("Posterize", 7)),
    ("Solarize", 5, ("Solarize", 128)),
    ("Solarize", 9.99, ("Solarize", 255)),
    ("Solarize", 10, ("Identity", 256)),
    ("Solarize", 20, ("Identity", 256)),
    ("SolarizeIncreasing", 0, ("Identity", 256)),
    ("SolarizeIncreasing", 10, ("Solarize", 0)),
    ("SolarizeAdd", 7, ("SolarizeAdd", 77)),
    ("SolarizeAdd", 20, ("SolarizeAdd", 128)),
    ("Color", 0, ("Color", 0.1)),
    ("Contrast", 9, ("Contrast", 1.72)),
    ("Brightness", 10, ("Brightness", 1.9)),
    ("ColorIncreasing", 10, ("Color", 1.9)),
    ("SharpnessIncreasing", 5, ("Sharpness", 1.45)),
    ("Desaturate", 10, ("Color", 0.0)),
    ("Desaturate", 0, ("Color", 0.5)),
    ("GaussianBlur", 10, ("GaussianBlur", 2.0)),
    ("GaussianBlur", 0, ("GaussianBlur", 0.1)),
    ("GaussianBlurRand", 10, ("GaussianBlur", 1.05)),
    ("Equalize", 3, ("Equalize", 0)),
]
"""timm's name, a level, and what it means, with a positive sign and the value's draw at 0.5."""
SIGNED = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


@pytest.mark.parametrize("sign", [1, -1])
def test_levels_mean_what_they_mean_in_timm(sign: int) -> None:
    u = np.array([[0.2 if sign > 0 else 0.8], [0.5]])
    for name, level, (meant, positive_value) in LEVELS:
        found = get_ops(["Invert", name], np.array([1]), level, u)
        value = positive_value * (sign if name.startswith(SIGNED) else 1)
        if name.endswith("Increasing") and meant in ("Color", "Sharpness"):
            value = max(0.1, 1 + sign * (value - 1))
        assert OPS[found["op"][0]] == meant, (name, level)
        assert found["value"][0] == pytest.approx(value, abs=1e-9), (name, level)


@pytest.mark.parametrize("policy", ["augmix-m4", "rand-m4", "rand-m4-inc1", "rand-m4-tweights"])
def test_values_are_those_of_timms_create_transform(policy: str) -> None:
    """Each operation of the policy, and its value without a sign."""
    timm = pytest.importorskip("timm.data")
    transform = timm.create_transform(224, is_training=True, auto_augment=policy)
    ours, theirs = read_policy(policy).ops, transform.transforms[2].ops
    assert len(ours) == len(theirs)
    for theirs_op in theirs:
        name = theirs_op.name + "Mix" * (theirs_op.name + "Mix" in ours)
        found = get_ops(ours, np.array([ours.index(name)]), 4.0, np.array([[0.2], [0.5]]))
        if theirs_op.level_fn is None:
            continue
        (expected,) = theirs_op.level_fn(4.0, theirs_op.hparams)
        if name.startswith(SIGNED):
            expected = abs(expected)
        elif name.startswith(("Color", "Contrast", "Brightness", "Sharpness")) and "Inc" in name:
            expected = 1 + abs(expected - 1)
        assert found["value"][0] == pytest.approx(expected, abs=1e-9), name


def test_factors_stay_above_a_tenth() -> None:
    found = get_ops(["ColorIncreasing"], np.array([0]), 20, np.array([[0.8], [0.5]]))
    assert found["value"][0] == 0.1


def test_levels_without_deviation_are_the_magnitude() -> None:
    assert (draw_levels(7, 0.0, 10.0, np.random.default_rng(0).random((2, 5))) == 7).all()
    assert (draw_levels(15, 0.0, 10.0, np.zeros((2, 1))) == 10).all()
    assert (draw_levels(15, 0.0, 20.0, np.zeros((2, 1))) == 15).all()


def test_levels_are_normal_and_clipped() -> None:
    levels = draw_levels(9.0, 0.5, 10.0, np.random.default_rng(0).random((2, 40_000)))
    inside = levels[levels < 10]
    assert abs(np.median(levels) - 9) < 0.01
    assert abs((levels < 8.5).mean() - 0.1587) < 0.008
    assert abs((levels == 10).mean() - 0.0228) < 0.004
    assert inside.std() < 0.5
    low = draw_levels(0.0, 1.0, 10.0, np.random.default_rng(0).random((2, 1000)))
    assert abs((low == 0).mean() - 0.5) < 0.06


def test_uniform_levels_begin_at_zero() -> None:
    levels = draw_levels(6.0, UNIFORM, 10.0, np.random.default_rng(0).random((2, 10_000)))
    assert abs(levels.mean() - 3) < 0.1
    assert 0 <= levels.min() < 0.01
    assert 5.99 < levels.max() < 6
    above = draw_levels(20.0, UNIFORM, 10.0, np.random.default_rng(0).random((2, 10_000)))
    assert abs((above == 10).mean() - 0.5) < 0.02
