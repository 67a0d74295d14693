import re

import pytest

from gpupipe.augment.policy import ChainMixture
from gpupipe.augment.policy_tables import IMAGENET, V0
from gpupipe.augment.timm_policies import (
    AUTO_POLICIES,
    MIX_OPS,
    RAND_INCREASING_OPS,
    RAND_OPS,
    UNIFORM,
    read_policy,
)


def test_of_timm_a2() -> None:
    policy = read_policy("rand-m7-mstd0.5-inc1")
    assert (policy.kind, policy.magnitude, policy.std, policy.largest) == ("rand", 7, 0.5, 10)
    assert (policy.num_ops, policy.probability, policy.weights) == (2, 0.5, None)
    assert policy.ops == RAND_INCREASING_OPS
    assert {"PosterizeIncreasing", "SolarizeIncreasing", "ColorIncreasing"} < set(policy.ops)
    assert not {"Posterize", "Solarize", "Color"} & set(policy.ops)


def test_defaults_of_rand() -> None:
    policy = read_policy("rand")
    assert (policy.magnitude, policy.std, policy.num_ops, policy.ops) == (10, 0, 2, RAND_OPS)


def test_sections_of_rand() -> None:
    policy = read_policy("rand-m15-n3-p0.7-mstd101-mmax20")
    assert (policy.magnitude, policy.num_ops, policy.probability) == (15, 3, 0.7)
    assert (policy.std, policy.largest) == (UNIFORM, 20)


@pytest.mark.parametrize(
    ("text", "count", "heaviest"),
    [("rand-tweights", 15, {"Rotate"}), ("rand-t3aw-inc1", 14, {"GaussianBlur", "Desaturate"})],
)
def test_weighted_sets(text: str, count: int, heaviest: set[str]) -> None:
    policy = read_policy(text)
    assert policy.weights is not None
    assert len(policy.ops) == len(policy.weights) == count
    weights = dict(zip(policy.ops, policy.weights, strict=True))
    assert {weights[name] for name in heaviest} == {max(policy.weights)}


def test_the_old_weights_belong_to_places() -> None:
    """As timm had it: the increasing variants have the weights of the others."""
    plain, increasing = read_policy("rand-w0"), read_policy("rand-w0-inc1")
    assert plain.weights == increasing.weights
    assert plain.weights is not None
    assert sum(plain.weights) == pytest.approx(1.0)
    assert increasing.ops == RAND_INCREASING_OPS


def test_three_augment() -> None:
    assert read_policy("rand-t3a").ops == ("SolarizeIncreasing", "Desaturate", "GaussianBlur")
    assert [len(sub) for sub in read_policy("3a").sub_policies] == [1, 1, 1]


def test_of_augmix() -> None:
    policy = read_policy("augmix-m5-w4-d2")
    assert (policy.magnitude, policy.mixture, policy.std) == (5, ChainMixture(4, 2, 1.0), UNIFORM)
    assert policy.ops == MIX_OPS
    assert len(MIX_OPS) == 13
    policy = read_policy("augmix-b1-a0.5-mstd1")
    assert (policy.magnitude, policy.mixture, policy.std) == (3, ChainMixture(3, 0, 0.5), 1)


def test_of_auto_augment() -> None:
    policy = read_policy("original-mstd0.5")
    assert (policy.kind, policy.std, len(policy.sub_policies)) == ("auto", 0.5, 25)
    for name, posterize in (
        ("original", "PosterizeOriginal"),
        ("originalr", "PosterizeIncreasing"),
        ("v0", "Posterize"),
        ("v0r", "PosterizeIncreasing"),
    ):
        base = V0 if name.startswith("v0") else IMAGENET
        assert [
            tuple((op.replace(posterize, "Posterize"), p, level) for op, p, level in sub)
            for sub in AUTO_POLICIES[name]
        ] == list(base)
        assert posterize in read_policy(name).ops


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rand-m9-msdt0.5", "unknown section 'msdt0.5'; did you mean 'mstd0.5'?"),
        ("rnd-m9", "there is no policy 'rnd'; did you mean 'rand'?"),
        ("3aa", "there is no policy '3aa'; did you mean '3a'?"),
        ("orignal", "did you mean 'original'?"),
        ("", "there is no policy ''; known: "),
        ("rand--m9", "unknown section ''"),
        ("rand-M9", "unknown section 'M9'"),
        ("rand-m9-inc", "'inc' has no number: write one, such as inc1"),
        ("rand-m9-inc0", "older versions of timm read any number after 'inc' as 1"),
        ("augmix-b0", "older versions of timm read any number after 'b' as 1"),
        ("rand-m9.5", "'m9.5' is not whole"),
        ("rand-m9-m5", "'m' stands twice"),
        ("rand-t3a-tweights", "'t' stands twice"),
        ("rand-tweight", "unknown section 'tweight'; did you mean 'tweights'?"),
        ("rand-w1", "write w0 or tweights"),
        ("rand-w0-t3a", "leave one out"),
        ("rand-n14-w0", "13 weighted operations are drawn without replacement"),
        ("rand-n0", "n is 0: write a number from 1 to 16"),
        ("rand-p1.5", "write a probability"),
        ("original-m5", "unknown section 'm5'; known: mstd"),
        ("augmix-n2", "unknown section 'n2'; known: "),
        ("augmix-a0", "a is 0: write a number from 0.05 to 100"),
        ("augmix-d0", "d is 0: write a number from 1 to 16"),
    ],
)
def test_what_timm_does_not_know_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        read_policy(text)
    assert repr(text) in str(refusal.value)
