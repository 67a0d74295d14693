from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.steps.random_crop import RandomCrop
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": 100},
        {"size": [115, 112]},
        {"size": [50, 15]},
        {"size": 100, "padding": 4},
        {"size": 100, "padding": [3, 4, 5, 6], "fill": [7, 8, 9]},
        {"size": 115, "padding": [5, 10], "padding_mode": "reflect"},
        {"size": 115, "padding": 9, "padding_mode": "symmetric"},
        {"size": 115, "padding": 9, "padding_mode": "edge"},
        {"size": 200, "pad_if_needed": True, "fill": 50},
        {"size": 150, "pad_if_needed": True, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_exact(small_gallery: Path, parameters: dict[str, Any]) -> None:
    assert max(d.most for d in differences(small_gallery, {"random_crop": parameters})) == 0


def test_windows_differ_and_reach_every_corner(small_gallery: Path) -> None:
    step = RandomCrop.model_validate({"size": 3})
    with load(small_gallery, {"random_crop": {"size": 3}}) as loader:
        entry = loader.config.pipeline.entries[1]
        tops = {
            tuple(
                step.anchor(
                    {
                        "position": entry.parameters(0, e, loader.sampler.order(0)[:1])["position"][
                            0
                        ]
                    },
                    _four(),
                )
            )
            for e in range(200)
        }
    assert tops == {(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)}


def _four() -> Any:
    import numpy as np

    return np.array([4.0, 4.0])


def test_a_window_of_the_file_is_all_that_is_decoded(small_gallery: Path) -> None:
    with load(small_gallery, {"random_crop": {"size": 100}}) as loader:
        assert emitted(loader) == ["decoders.image_slice", "transpose"]


@pytest.mark.parametrize("parameters", [{"size": 400}, {"size": 300, "padding": 2}])
def test_an_image_that_is_too_small_is_named(
    small_gallery: Path, parameters: dict[str, Any]
) -> None:
    with (
        load(small_gallery, {"random_crop": parameters}) as loader,
        pytest.raises(gpupipe.SampleError, match=r"class_\d/\d\d_\d+x\d+\.png"),
    ):
        list(loader)


def test_too_small_is_refused_beforehand_where_the_size_is_known() -> None:
    known = Spec.of_image(3, 32, 32)
    with pytest.raises(
        StepIncompatibleError, match=r"at least 64x64 pixels, but .* has 32x32.*pad_if_needed"
    ):
        RandomCrop.model_validate({"size": 64}).infer_spec(known)
    assert RandomCrop.model_validate({"size": 40, "padding": 4}).infer_spec(known).size == (40, 40)
