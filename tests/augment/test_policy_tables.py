"""The tables of torchvision's policies, and of AutoAugment number by number.

Draws would not show a wrong probability.
"""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from gpupipe.augment.policy_ops import OPS
from gpupipe.augment.policy_tables import (
    CIFAR10,
    IMAGENET,
    RAND_AUGMENT_MAGNITUDES,
    RAND_AUGMENT_OPS,
    SVHN,
    V0,
    SubPolicies,
    choose,
    linspace,
    make_table,
)

ENHANCING = {"Brightness", "Color", "Contrast", "Sharpness"}


@pytest.mark.parametrize("count", [2, 5, 10, 31])
def test_linspace_is_torchs_to_the_bit(count: int) -> None:
    for start, end in ((0.0, 0.3), (0.0, 30.0), (1.0, 0.0), (0.0, 150.0 / 331.0), (0.0, 0.99)):
        expected = torch.linspace(start, end, count).double().tolist()
        assert linspace(start, end, count).tolist() == expected, (start, end)


@pytest.mark.parametrize("num_bins", [2, 11, 31])
def test_the_table_is_torchvisions_augmentation_space(num_bins: int) -> None:
    side = 331
    space: dict[str, Any] = v2.RandAugment(num_magnitude_bins=num_bins)._AUGMENTATION_SPACE
    table = make_table(RAND_AUGMENT_OPS, RAND_AUGMENT_MAGNITUDES, num_bins)
    assert space.keys() == set(RAND_AUGMENT_OPS)
    for name, magnitudes, is_signed in zip(
        RAND_AUGMENT_OPS, table.magnitudes, table.is_signed, strict=True
    ):
        make, expected_signed = space[name]
        expected = make(num_bins, side, side)
        values = magnitudes * {"Translate": side, "Solarize": 1 / 255}.get(name.rstrip("XY"), 1)
        assert bool(is_signed) is expected_signed, name
        if expected is not None:
            np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-7, err_msg=name)


def test_a_draw_adds_the_signed_magnitude_to_what_changes_nothing() -> None:
    table = make_table(RAND_AUGMENT_OPS, RAND_AUGMENT_MAGNITUDES, 31)
    index = np.array([RAND_AUGMENT_OPS.index(name) for name in ("Rotate", "Color", "Posterize")])
    for is_negative, values in ((False, [30.0, 1.9, 4.0]), (True, [-30.0, 0.1, 4.0])):
        found = table.get(index, np.full(3, 30), np.full(3, 0.4 if is_negative else 0.5))
        assert [OPS[op] for op in found["op"]] == ["Rotate", "Color", "Posterize"]
        np.testing.assert_allclose(found["value"], values, atol=1e-6)


def test_shifts_are_fractions_of_the_size() -> None:
    table = make_table(RAND_AUGMENT_OPS, RAND_AUGMENT_MAGNITUDES, 31)
    assert {name for name in table.names if name not in RAND_AUGMENT_OPS} == {
        "TranslateXRel",
        "TranslateYRel",
    }


def test_draws_become_numbers_that_are_equally_probable() -> None:
    u = np.array([0.0, 0.2499, 0.25, 0.999, np.nextafter(1.0, 0.0)])
    assert choose(u, 4).tolist() == [0, 0, 1, 3, 3]
    assert choose(np.array([1 - 2.0**-53]), 3).tolist() == [2]


V0_DIGEST = "efe1e92be641e4f2"
"""Of the table that was compared with timm's auto_augment_policy_v0, row by row."""


@pytest.mark.parametrize(
    ("name", "table"),
    [("imagenet", IMAGENET), ("cifar10", CIFAR10), ("svhn", SVHN)],
    ids=["imagenet", "cifar10", "svhn"],
)
def test_the_tables_are_torchvisions(name: str, table: SubPolicies) -> None:
    theirs = v2.AutoAugment(v2.AutoAugmentPolicy(name))._policies
    assert table == tuple(
        tuple((op, p, 0 if level is None else level) for op, p, level in pair) for pair in theirs
    )


def test_the_table_of_timm_stays_as_it_is() -> None:
    assert len(V0) == 25
    assert hashlib.sha256(repr(V0).encode()).hexdigest()[:16] == V0_DIGEST
