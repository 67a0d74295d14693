from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torchvision.transforms import v2

from gpupipe.steps.trivial_augment_wide import TrivialAugmentWide
from helpers import augment_draws
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize("num_magnitude_bins", [31, 5])
def test_draws_have_torchvisions_distribution(num_magnitude_bins: int) -> None:
    drawn = augment_draws.sampled(
        TrivialAugmentWide(num_magnitude_bins=num_magnitude_bins), augment_draws.RECORDED
    )
    ours = map(augment_draws.names_and_magnitudes, drawn["op"], drawn["value"])
    theirs = augment_draws.recorded(v2.TrivialAugmentWide, num_magnitude_bins=num_magnitude_bins)
    assert augment_draws.agree(augment_draws.rounded(ours), augment_draws.rounded(theirs))


@pytest.mark.parametrize("options", [{}, {"interpolation": "bilinear", "fill": 7}])
def test_dali_agrees_with_torch(small_gallery: Path, options: dict[str, Any]) -> None:
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
