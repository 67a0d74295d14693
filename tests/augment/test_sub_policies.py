"""The tables of AutoAugment, number by number: draws would not show a wrong probability."""

from __future__ import annotations

import hashlib

import pytest
from torchvision.transforms import v2

from gpupipe.augment.sub_policies import CIFAR10, IMAGENET, SVHN, V0, SubPolicies

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
