"""Hashes at a distance of at most 4 bits share a group, and no others."""

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from gpupipe.inspection.duplicates import group_near


@pytest.mark.parametrize("count", [0, 1, 600])
def test_groups_are_those_of_all_pairs(count: int) -> None:
    draw = np.random.default_rng(0)
    hashes = draw.integers(0, 2**64, count, np.uint64)
    for n in range(0, count - 1, 2):  # a neighbour at a distance of 0 to 6 bits
        flipped = draw.choice(64, n // 2 % 7, replace=False)
        for bit in flipped.tolist():
            hashes[n + 1] = hashes[n] if bit == flipped[0] else hashes[n + 1]
            hashes[n + 1] ^= np.uint64(1 << bit)
    hashes = np.unique(hashes)
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).astype(np.int64)
    apart = (bits[:, None] != bits[None]).sum(2)
    expected = connected_components(apart <= 4)[1] if count else np.empty(0, int)
    groups = group_near(hashes)
    same = groups[:, None] == groups[None]
    assert (same == (expected[:, None] == expected[None])).all()
    assert count < 600 or 100 < len(hashes) - len(np.unique(groups)) < 260


def test_hashes_that_are_all_alike_in_a_part_are_compared() -> None:
    hashes = np.arange(1000, dtype=np.uint64) << np.uint64(50)  # most keys are equal
    assert len(np.unique(group_near(hashes))) == 1
