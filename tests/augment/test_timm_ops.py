from __future__ import annotations

import numpy as np
import pytest

from gpupipe.augment.policy_ops import OPS
from gpupipe.augment.timm_ops import UNIFORM, draw_levels, get_ops
from gpupipe.augment.timm_policies import read_policy

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
