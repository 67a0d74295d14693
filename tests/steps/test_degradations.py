from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.augment import noise
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.step import SampleIncompatibleError, StepIncompatibleError
from gpupipe.steps.degradations import GaussianBlur, GaussianNoise, Jpeg
from helpers.arrays import ENGINES, both, delivered, exactly, numbers, saved
from helpers.color_differences import EXACT, drawn, is_uniform, most
from helpers.pipeline_texts import FLOAT, NORM, build, mistakes
from helpers.reference import differences, load


@pytest.mark.parametrize(
    ("step", "gray"),
    [({"kernel_size": [3, 9], "sigma": 2}, True), ({"kernel_size": 23, "sigma": [1, 9]}, False)],
    ids=str,
)
def test_levels_are_within_one_of_torchvisions(
    small_gallery: Path, step: dict[str, Any], gray: bool
) -> None:
    assert most(small_gallery, "gaussian_blur", gray=gray, **step) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "gaussian_blur", "float32", kernel_size=[7, 3]) <= EXACT


def test_sigma_is_drawn_from_its_range() -> None:
    assert is_uniform(drawn("gaussian_blur", kernel_size=3)["sigma"], 0.1, 2.0)
    assert is_uniform(drawn("gaussian_blur", kernel_size=3, sigma=[1, 4])["sigma"], 1.0, 4.0)
    assert set(drawn("gaussian_blur", 9, kernel_size=3, sigma=1.5)["sigma"]) == {1.5}


def test_short_forms_mean_what_they_mean_in_torchvision() -> None:
    assert GaussianBlur.model_validate({"kernel_size": 5}).kernel_size == (5, 5)
    assert GaussianBlur.model_validate({"kernel_size": [5]}).kernel_size == (5, 5)
    assert GaussianBlur.model_validate({"kernel_size": [5, 3]}).kernel_size == (5, 3)
    assert GaussianBlur.model_validate({"kernel_size": 5, "sigma": 2}).sigma == (2.0, 2.0)


@pytest.mark.parametrize(
    "step",
    [
        {"kernel_size": 4},
        {"kernel_size": [3, 4]},
        {"kernel_size": 0},
        {"kernel_size": -3},
        {"kernel_size": [3, 3, 3]},
        {"kernel_size": True},
        {"kernel_size": 3, "sigma": 0},
        {"kernel_size": 3, "sigma": [2, 1]},
        {"kernel_size": 3, "sigma": [0.1, 1, 2]},
        {},
    ],
    ids=str,
)
def test_other_parameters_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        GaussianBlur.model_validate(step)


def test_an_image_smaller_than_the_border_is_refused() -> None:
    step = GaussianBlur.model_validate({"kernel_size": [9, 3]})
    spec = Spec.of_image(3, 2, 5)
    assert step.infer_spec(spec) == spec
    with pytest.raises(
        StepIncompatibleError, match=r"needs at least 2x5 pixels, .* has 2x4: write a"
    ):
        step.infer_spec(Spec.of_image(3, 2, 4))
    with pytest.raises(SampleIncompatibleError, match=r"needs at least 2x5 pixels, .* has 2x4"):
        step.torch(torch.zeros(3, 2, 4), {"sigma": 1.0})


def test_a_sample_smaller_than_the_border_is_named(small_gallery: Path) -> None:
    blur = {"gaussian_blur": {"kernel_size": [999, 3]}}
    with (
        load(small_gallery, blur) as loader,
        pytest.raises(gpupipe.SampleError, match="at least 2x500"),
    ):
        list(loader)


CROP = {"random_crop": {"size": [40, 50]}}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


@pytest.mark.parametrize("before", [[CROP], [CROP, FLOATS]], ids=["uint8", "float32"])
@pytest.mark.parametrize(
    "step", [{}, {"mean": -0.2, "sigma": 0.5}, {"sigma": 0}, {"mean": 3, "sigma": 100}], ids=str
)
def test_engines_add_the_same_noise(
    small_gallery: Path, before: list[Any], step: dict[str, Any]
) -> None:
    assert max(d.most for d in differences(small_gallery, *before, {"gaussian_noise": step})) == 0


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("CHW", "uint8"), ("HWC", "float32"), ("HW", "uint8"), ("HW", "float32"), ("CHW", "float32")],
)
def test_arrays_are_exact(tmp_path: Path, layout: str, dtype: str) -> None:
    shape = {"CHW": (3, 9, 12), "HWC": (9, 12, 3), "HW": (9, 12)}[layout]
    data = saved(tmp_path, np.abs(numbers(dtype, (5, *shape))), layout=layout)
    exactly(both(data, ["gaussian_noise"]))


@pytest.mark.parametrize("step", [{}, {"mean": 0.3, "sigma": 0.4}, {"sigma": 9}], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_given_the_same_normal_numbers_it_is_torchvisions(
    dtype: torch.dtype, step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    image = (torch.rand(3, 30, 40) * (255 if dtype == torch.uint8 else 1)).to(dtype)
    torch.manual_seed(1)
    field = torch.randn_like(image, dtype=torch.float32)
    monkeypatch.setattr(noise, "normal_field", lambda *_: field.permute(1, 2, 0).numpy().copy())
    torch.manual_seed(1)
    expected = F.gaussian_noise(image, **step)
    made = GaussianNoise.model_validate(step).torch(image, {"seed": 0})
    assert made.dtype == dtype
    assert torch.equal(made, expected)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("engine", ENGINES)
def test_noise_has_the_mean_and_sigma_that_were_written(
    tmp_path: Path, dtype: str, engine: str
) -> None:
    """Gray images, so that nothing is clamped."""
    unit = 255.0 if dtype == "uint8" else 1.0
    gray = np.full((4, 3, 100, 120), 0.5 * unit).astype(dtype)
    data = saved(tmp_path, gray)
    written = {"mean": 0.05, "sigma": 0.08}
    made = delivered(data, [{"gaussian_noise": written}], engine).values()
    added = torch.stack(list(made)).double() / unit - float(gray.flat[0]) / unit
    error = added.numel() ** -0.5
    level = 1 / 255 if dtype == "uint8" else 0.0  # noise in levels is truncated to whole ones
    assert abs(float(added.mean()) - 0.05) < 5 * 0.08 * error + level
    assert abs(float(added.std()) - 0.08) < 5 * 0.08 * error + level / 4
    assert len({image.numpy().tobytes() for image in made}) == 4


@pytest.mark.parametrize("engine", ENGINES)
def test_clip_clamps_floats(tmp_path: Path, engine: str) -> None:
    data = saved(tmp_path, np.full((3, 3, 40, 50), 0.9, np.float32))
    for clip in (True, False):
        steps = [{"gaussian_noise": {"sigma": 1, "clip": clip}}]
        made = torch.stack(list(delivered(data, steps, engine).values()))
        assert (float(made.min()) == 0) == (float(made.max()) == 1) == clip
    plain = saved(tmp_path, np.full((3, 3, 40, 50), 250, np.uint8))
    levels = torch.stack(list(delivered(plain, ["gaussian_noise"], engine).values()))
    assert int(levels.max()) == 255
    assert 0.3 < float((levels == 255).float().mean()) < 0.5


def test_a_seed_is_drawn_for_each_sample() -> None:
    u = np.random.default_rng(0).random((20_000, 1))
    seeds = GaussianNoise().sample(u)["seed"]
    assert (seeds.dtype, seeds.shape) == (np.int64, (20_000,))
    assert len(np.unique(seeds)) == 20_000


@pytest.mark.parametrize("engine", ENGINES)
def test_random_apply_leaves_the_others_alone(tmp_path: Path, engine: str) -> None:
    data = saved(tmp_path, np.full((40, 3, 9, 12), 100, np.uint8))
    step = {"random_apply": {"p": 0.4, "transforms": ["gaussian_noise"]}}
    made = delivered(data, [step], engine, batch_size=8)
    noisy = {id for id, image in made.items() if (image != 100).any()}
    assert 5 < len(noisy) < 30
    expected = delivered(data, ["gaussian_noise"], engine, batch_size=8)
    assert expected.keys() == made.keys()


@pytest.mark.parametrize("count", [0, 3])
def test_dali_is_fed_only_where_the_branch_is_taken(count: int) -> None:
    from gpupipe.engines.dali.operators.image import ImageTracer

    image = ImageTracer(np.full((8, 2), 20.0), "cpu")
    image.spec = Spec.of_image(3, 20, 20)
    p = {"seed": np.arange(10, 18)}
    taken = (np.arange(8) < count).astype(int)
    image.switch(taken, [lambda part: None, lambda part: GaussianNoise().lower(part, p)])
    fed: Any = image.subgraph().arrays[-1]
    assert [len(field) for field in fed.make()] == [20] * count + [1] * (8 - count)


@pytest.mark.parametrize("before", [[], [{"random_zoom_out": {"p": 1}}], ["transpose"]], ids=str)
@pytest.mark.parametrize("engine", ENGINES)
def test_images_of_any_size_get_noise_without_a_crop_before(
    small_gallery: Path, engine: str, before: list[Any]
) -> None:
    steps, options = [*before, "gaussian_noise"], {"batch_size": 4, "shapes": "list"}
    found = differences(small_gallery, *steps, engine=engine, **options)
    assert len({d.image.shape for d in found}) > 2
    assert max(d.most for d in found) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_after_a_resume_have_the_same_noise(tmp_path: Path, engine: str) -> None:
    data = saved(tmp_path, np.full((20, 3, 9, 12), 100, np.uint8))
    options = {"device": "cpu", "batch_size": 4, "ids": True, **ENGINES[engine]}
    written = {"data": data, "pipeline": ["gaussian_noise"]}
    with gpupipe.load(written, **options) as loader:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        state = loader.state_dict()
        expected = list(batches)
        again = next(iter(loader))
    with gpupipe.load(written, **options | {"batch_size": 4}) as resumed:
        resumed.load_state_dict(state)
        made = list(resumed)
    assert len(made) == len(expected) == 3
    for a, b in zip(made, expected, strict=True):
        assert torch.equal(a["id"], b["id"])
        assert torch.equal(a["array"], b["array"])
    assert not torch.equal(again["array"], expected[0]["array"])


def test_masks_are_left_alone() -> None:
    spec = replace(Spec.of_array("int64", [1, 8, 8], "CHW"), kind="mask")
    step = GaussianNoise().adapt_to_mask().resolve(spec)
    assert step.infer_spec(spec) == spec
    mask = torch.arange(64).reshape(1, 8, 8)
    assert torch.equal(step.torch(mask, {"seed": 1}), mask)


def test_floats_outside_of_0_to_1_are_refused_unless_nothing_is_clamped() -> None:
    crop = "random_crop: {size: 40}"
    build("decode", crop, FLOAT, NORM, "gaussian_noise: {clip: false}")
    (mistake,) = mistakes("decode", crop, FLOAT, NORM, "gaussian_noise")
    assert "gets normalized ones: move it before 'normalize'" in mistake


@pytest.mark.parametrize(("clip", "values"), [("true", "usual"), ("false", "filled")])
def test_without_clip_later_steps_get_any_numbers(clip: str, values: str) -> None:
    built = build("decode", "random_crop: {size: 40}", FLOAT, f"gaussian_noise: {{clip: {clip}}}")
    assert built.output_spec.pixels.values == values


def test_noise_beyond_what_16_bits_hold_does_not_wrap_around() -> None:
    """torchvision's does: a level of 40000 becomes one below 0."""
    step = GaussianNoise(mean=150.0, sigma=0.0)
    assert (step.torch(torch.zeros(3, 4, 5, dtype=torch.uint8), {"seed": 0}) == 255).all()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            ["decode", "center_crop: {size: 9}", "gaussian_noise: {clip: false}"],
            "3:3: gaussian_noise cannot stand here: levels of uint8 wrap around without clip: "
            "leave 'clip' out, or write 'to_dtype: {dtype: float32, scale: true}' before it",
        ),
        (
            ["decode", "gaussian_noise: {sigma: -1}"],
            "2:27: gaussian_noise.sigma is -1, but should be at least 0",
        ),
        (
            ["decode", "gaussian_noise: {std: 1}"],
            "2:20: gaussian_noise.std: unknown key; known: clip, mean, sigma",
        ),
    ],
)
def test_mistakes(steps: list[str], message: str) -> None:
    assert mistakes(*steps) == [message]


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("quality", [[1, 100], 75])
def test_dali_on_a_cpu_makes_the_pixels_of_pillow(gallery: Path, gray: bool, quality: Any) -> None:
    assert most(gallery, "jpeg", gray=gray, quality=quality) == 0


@pytest.mark.filterwarnings("ignore:The image decoding and encoding:DeprecationWarning")
@pytest.mark.parametrize("channels", [1, 3])
def test_pillow_makes_the_pixels_of_torchvision(channels: int) -> None:
    image = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (channels, 37, 50), np.uint8)
    )
    made = Jpeg.model_validate({"quality": 60}).torch(image, {"quality": np.int32(60)})
    assert torch.equal(made, F.jpeg(image, 60))
    assert not torch.equal(made, image)


def test_each_quality_is_equally_probable() -> None:
    values, counts = np.unique(
        drawn("jpeg", 60_000, quality=[5, 10])["quality"], return_counts=True
    )
    assert values.tolist() == [5, 6, 7, 8, 9, 10]
    assert np.abs(counts - 10_000).max() < 500
    assert set(drawn("jpeg", 9, quality=30)["quality"]) == {30}


@pytest.mark.parametrize("quality", [0, 101, [9, 5], [50], [1, 2, 3], 7.5, True, None])
def test_other_qualities_are_refused(quality: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        Jpeg.model_validate({"quality": quality})


def test_floats_are_refused() -> None:
    floats = Spec.of_image(3, dtype="float32")
    with pytest.raises(
        StepIncompatibleError, match="works on uint8, but gets float32: write 'to_dtype"
    ):
        Jpeg.model_validate({"quality": 9}).infer_spec(floats)
