from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.steps.crop_and_pad import Pad, RandomCrop
from helpers.full_product import IS_FULL
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize("size", [112, 111, [115, 112], [50, 115]], ids=str)
def test_inside_the_image_it_is_exact(small_gallery: Path, size: Any) -> None:
    assert max(d.most for d in differences(small_gallery, {"center_crop": {"size": size}})) == 0


@pytest.mark.parametrize("size", [350, [351, 50], [50, 350], [151, 151]], ids=str)
def test_a_smaller_image_is_padded_with_zeros_on_all_sides(small_gallery: Path, size: Any) -> None:
    assert max(d.most for d in differences(small_gallery, {"center_crop": {"size": size}})) == 0


@pytest.mark.parametrize(("short", "crop"), [(128, 112), (129, 112), (128, 113), (131, 131)])
def test_behind_a_resize_it_is_one_resize_without_a_shift(
    gallery: Path, short: int, crop: int
) -> None:
    steps = {"resize": {"size": short}}, {"center_crop": {"size": crop}}
    found = differences(gallery, *steps)
    assert max(d.mean for d in found) < 0.3
    assert max(abs(d.offset) for d in found) < 0.2
    edge = (
        0 if short - crop >= 8 else 4
    )  # a crop well inside has no edge of the image in it: all its pixels are compared
    assert (
        max(
            float(d.levels[:, edge : d.image.shape[1] - edge, edge : d.image.shape[2] - edge].max())
            for d in found
        )
        <= 1
    )
    with load(gallery, *steps) as loader:
        assert emitted(loader) == ["decoders.image_slice", "resize", "transpose"]


def test_two_crops_are_both_done(small_gallery: Path) -> None:
    assert (
        max(
            d.most
            for d in differences(
                small_gallery, {"center_crop": {"size": 100}}, {"center_crop": {"size": [51, 45]}}
            )
        )
        == 0
    )


PADDINGS = [5, [3, 7], [1, 2, 3, 4], [0, 0, 9, 0]]
CASES = [
    (padding, mode)
    for number, mode in enumerate(["constant", "edge", "reflect", "symmetric"])
    for padding in (PADDINGS if IS_FULL else [PADDINGS[number - 1], PADDINGS[2]])
]


@pytest.mark.parametrize(("padding", "mode"), CASES, ids=str)
def test_padding_is_exact(small_gallery: Path, padding: Any, mode: str) -> None:
    assert (
        max(
            d.most
            for d in differences(small_gallery, {"pad": {"padding": padding, "padding_mode": mode}})
        )
        == 0
    )


def test_fill_by_channel(small_gallery: Path) -> None:
    found = differences(small_gallery, {"pad": {"padding": 4, "fill": [10, 20, 30]}})
    assert max(d.most for d in found) == 0
    assert found[0].image[:, 0, 0].tolist() == [10, 20, 30]


def test_shape() -> None:
    made = Pad.model_validate({"padding": [1, 2, 3, 4]}).infer_spec(Spec.of_image(3, 10, 20))
    assert made.size == (16, 24)


def test_reflect_needs_enough_pixels() -> None:
    with pytest.raises(StepIncompatibleError, match="10x20"):
        Pad.model_validate({"padding": 10, "padding_mode": "reflect"}).infer_spec(
            Spec.of_image(3, 10, 20)
        )


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
