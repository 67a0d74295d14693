from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms.v2 import RandomErasing as Torchvision

import gpupipe
from gpupipe.pipeline.step import Params, Spec
from gpupipe.steps.random_erasing import RandomErasing
from helpers.arrays import ENGINES, both, delivered, exactly, numbers, saved
from helpers.distributions import largest_gap
from helpers.many_fields import loaded, make, samples
from helpers.pipeline_texts import FLOAT, NORM, build, mistakes
from helpers.reference import differences, emitted, load

NORMALIZED = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]


def drawn(step: RandomErasing, count: int, seed: int = 0) -> dict[str, Any]:
    return step.sample(np.random.default_rng(seed).random((count, step.num_uniforms)))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"p": 1, "value": [7, 8, 9]},
        {"p": 1, "scale": [0.9, 1.0], "ratio": [0.5, 2]},
        {"p": 1, "scale": [0, 0]},
    ],
    ids=str,
)
def test_exact(small_gallery: Path, parameters: dict[str, Any]) -> None:
    assert max(d.most for d in differences(small_gallery, {"random_erasing": parameters})) == 0


def test_gray_images_are_as_after_decode(small_gallery: Path) -> None:
    """Within a level."""
    found = differences(
        small_gallery, {"random_erasing": {"p": 1, "value": 5}}, decode={"mode": "gray"}
    )
    assert max(d.most for d in found) <= 1
    assert all((d.image == 5).any() for d in found)


@pytest.mark.parametrize("value", [0, 0.25, [-1.5, 0.25, 1e4]], ids=str)
def test_on_normalized_floats_the_values_are_exact(small_gallery: Path, value: Any) -> None:
    """As after normalize alone, of which the tests are elsewhere."""
    found = differences(small_gallery, *NORMALIZED, {"random_erasing": {"p": 1, "value": value}})
    plain = differences(small_gallery, *NORMALIZED)
    colour = torch.tensor(value).expand(3)[:, None]
    for d, without in zip(found, plain, strict=True):
        erased = (d.image != without.image).any(0)
        assert erased.any()
        assert torch.equal(d.image[:, erased], colour.expand(3, int(erased.sum())))
        assert torch.equal(erased, (d.expected != without.expected).any(0))
        assert torch.equal(d.image[:, ~erased], without.image[:, ~erased])


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("CHW", "uint8"), ("HWC", "float16"), ("HW", "float32"), ("CHW", "float16")],
)
def test_arrays_are_exact(tmp_path: Path, layout: str, dtype: str) -> None:
    shape = {"CHW": (3, 9, 12), "HWC": (9, 12, 3), "HW": (9, 12)}[layout]
    data = saved(tmp_path, numbers(dtype, (5, *shape)), layout=layout)
    exactly(both(data, [{"random_erasing": {"value": 3}}]))


def by_the_book(p: Params, height: int, width: int) -> list[int] | None:
    """torchvision's loop (v2 RandomErasing.make_params), fed with the step's own tries: (top, left,
    height, width), or None if no window fits.
    """
    area = height * width
    for factor_h, factor_w in p["factors"]:
        h, w = round(area**0.5 * factor_h), round(area**0.5 * factor_w)
        if not (h < height and w < width):
            continue
        top, left = (
            int(u * (room + 1))
            for u, room in zip(p["position"], (height - h, width - w), strict=True)
        )
        return [top, left, h, w]
    return None


def test_a_batch_has_the_windows_of_its_samples() -> None:
    step = RandomErasing(p=0.5, scale=(0.3, 1.0), ratio=(0.2, 5.0))
    size = np.random.default_rng(0).integers(1, 60, (200, 2)).astype(np.float64)
    p = drawn(step, 200, seed=0)
    assert 50 < p["runs"].sum() < 150
    for n, (anchor, shape, erased) in enumerate(zip(*step.window(p, size), strict=True)):
        own = step.window({name: v[n] for name, v in p.items()}, size[n])
        assert np.array_equal([anchor, shape], own[:2])
        assert erased == (own[2] and shape[0] > 0)


@pytest.mark.parametrize("size", [(375, 500), (30, 900), (901, 31), (64, 64), (1, 1), (2, 3)])
@pytest.mark.parametrize(
    "parameters", [{}, {"scale": [0.8, 1.0], "ratio": [0.2, 5.0]}, {"scale": [1, 1]}], ids=str
)
def test_ten_tries_then_none(size: tuple[int, int], parameters: dict[str, Any]) -> None:
    step = RandomErasing.model_validate({"p": 1, **parameters})
    p = drawn(step, 300, seed=size[0])
    anchors, shapes, erased = step.window(p, np.array(size, np.float64))
    missed = 0
    for n in range(300):
        expected = by_the_book({name: values[n] for name, values in p.items()}, *size)
        assert (expected is not None) == erased[n]
        assert expected is None or [*anchors[n], *shapes[n]] == expected
        missed += expected is None
    if parameters.get("scale") == [1, 1]:
        assert missed == 300


@pytest.mark.parametrize("parameters", [{}, {"scale": [0.2, 0.9], "ratio": [0.5, 4.0]}], ids=str)
def test_distribution_is_torchvisions(parameters: dict[str, Any]) -> None:
    step = RandomErasing(**parameters)
    p = drawn(step, 20_000)
    assert abs(p["runs"].mean() - 0.5) < 0.015
    anchor, shape, erased = step.window(p | {"runs": p["runs"] * 0 + 1}, np.array([60.0, 80.0]))
    torch.manual_seed(0)
    transform, image = Torchvision(**parameters), torch.zeros(3, 60, 80)
    made = [transform.make_params([image]) for _ in range(3000)]
    theirs = np.array([[q[k] for k in "ijhw"] for q in made if q["v"] is not None])
    assert abs(len(theirs) / 3000 - erased.mean()) < 0.02
    ours = np.concatenate([anchor, shape], -1)[erased]
    for n in range(4):
        assert largest_gap(ours[:, n], theirs[:, n]) < 2.2


@pytest.mark.parametrize(("p", "runs"), [(0, 0), (1, 1)])
def test_p_at_its_ends(p: float, runs: int) -> None:
    assert (drawn(RandomErasing(p=p), 1000)["runs"] == runs).all()


CROP = {"random_crop": {"size": [60, 80]}}
NOISE = {"random_erasing": {"p": 1, "value": "random"}}


def test_noise_is_the_same_on_both_engines(small_gallery: Path) -> None:
    found = differences(small_gallery, CROP, *NORMALIZED, NOISE)
    plain = differences(small_gallery, CROP, *NORMALIZED)
    for d, without in zip(found, plain, strict=True):
        erased = (d.image != without.image).any(0)
        assert 0 < int(erased.sum()) < erased.numel()
        assert torch.equal(d.image[:, erased], d.expected[:, erased])
        assert torch.equal(d.image[:, ~erased], without.image[:, ~erased])


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_is_normally_distributed_and_fills_the_window(tmp_path: Path, engine: str) -> None:
    """In the window that the same draws leave to a number."""
    data = saved(tmp_path, np.full((6, 3, 60, 80), 7, np.float32))
    made = delivered(data, [NOISE], engine)
    windows = delivered(data, [{"random_erasing": {"p": 1, "value": 0}}], engine)
    numbers = []
    for id, image in made.items():
        erased = windows[id] == 0
        assert torch.equal(image != 7, erased)
        numbers.append(image[erased].double())
    drawn = torch.cat(numbers)
    assert len(drawn) > 3000
    assert abs(float(drawn.mean())) < 5 * len(drawn) ** -0.5
    assert abs(float(drawn.var()) - 1) < 5 * (2 / len(drawn)) ** 0.5
    assert largest_gap(drawn.numpy(), np.random.default_rng(0).normal(size=20_000)) < 2.2
    assert len(drawn.unique()) > 0.99 * len(drawn)


@pytest.mark.parametrize(("layout", "dtype"), [("HWC", "float16"), ("HW", "float32")])
def test_noise_in_arrays(tmp_path: Path, layout: str, dtype: str) -> None:
    shape = {"HWC": (9, 12, 3), "HW": (9, 12)}[layout]
    data = saved(tmp_path, np.abs(numbers(dtype, (5, *shape))), layout=layout)
    for made, expected in both(data, [NOISE]):
        torch.testing.assert_close(made, expected, rtol=2.0**-10, atol=2.0**-24)


def test_noise_after_a_resume_is_the_same(tmp_path: Path) -> None:
    data = saved(tmp_path, np.ones((12, 3, 20, 30), np.float32))
    written, options = {"data": data, "pipeline": [NOISE]}, {"device": "cpu", "batch_size": 3}
    with gpupipe.load(written, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = [batch["array"] for batch in batches]
    with gpupipe.load(written, **options) as resumed:
        resumed.load_state_dict(state)
        made = [batch["array"] for batch in resumed]
    assert len(made) == 3
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))


def test_a_number_leaves_the_draws_of_other_steps_alone() -> None:
    """Noise needs one draw more, which only 'random' takes."""
    assert RandomErasing().num_uniforms == 23
    assert RandomErasing(value="random").num_uniforms == 24
    u = np.random.default_rng(0).random((50, 24))
    number, noise = RandomErasing().sample(u[:, :23]), RandomErasing(value="random").sample(u)
    assert noise.keys() - number.keys() == {"seed"}
    assert all(np.array_equal(noise[name], number[name]) for name in number)


def test_a_mask_may_have_any_dtype_and_costs_no_time() -> None:
    step = RandomErasing(value="random").adapt_to_mask()
    spec = Spec.of_array("int64", (1, 8, 8), "CHW")
    assert step.infer_spec(spec) == spec


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_needs_no_crop_before_it(small_gallery: Path, engine: str) -> None:
    options = {"engine": engine, "batch_size": 4, "shapes": "list"}
    found = differences(small_gallery, *NORMALIZED, NOISE, **options)
    assert len({d.image.shape for d in found}) > 2
    assert max(d.most for d in found) <= 2e-6


def test_noise_comes_after_normalize() -> None:
    build("decode", "random_crop: {size: 9}", FLOAT, NORM, "random_erasing: {value: random}")


def test_without_probability_it_is_no_operator(small_gallery: Path) -> None:
    with load(small_gallery, {"random_erasing": {"p": 0}}) as loader:
        assert emitted(loader) == ["decoders.image", "transpose"]
    with load(small_gallery, "random_erasing") as loader:
        assert emitted(loader) == ["decoders.image", "erase", "transpose"]


def test_torchvision_leaves_masks_alone() -> None:
    image = tv_tensors.Image(torch.ones(3, 20, 20))
    mask = tv_tensors.Mask(torch.ones(1, 20, 20, dtype=torch.uint8))
    with pytest.warns(UserWarning, match="passing through"):
        erased, same = Torchvision(p=1)(image, mask)
    assert not torch.equal(erased, image)
    assert torch.equal(same, mask)


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
@pytest.mark.parametrize("nested", [False, True])
def test_masks_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, nested: bool
) -> None:
    """And move with the image before and after it, under the same draws."""
    data = make(tmp_path, monkeypatch)
    decode = [{"decode": {"on": "image"}}, {"decode": {"mode": "gray", "on": "mask"}}]
    on = {"on": ["image", "mask"]}
    erasing = {"random_erasing": {"p": 1, "value": [1, 2, 3]}}
    erase = (
        {"random_apply": {"p": 1, "transforms": [erasing], **on}}
        if nested
        else {"random_erasing": erasing["random_erasing"] | on}
    )
    flip = {"random_horizontal_flip": on}
    erased = samples(loaded(data, [*decode, erase, flip], engine=engine))
    plain = samples(loaded(data, [*decode, flip], engine=engine))
    for id, sample in erased.items():
        assert torch.equal(sample["mask"], plain[id]["mask"])
        window = (sample["image"] != plain[id]["image"]).any(0)
        assert 0 < int(window.sum()) < window.numel()
        assert (sample["image"][:, window] == torch.tensor([[1], [2], [3]])).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{value: random}",
            "2:3: random_erasing cannot stand here: value is 'random', which draws normal numbers "
            "around 0 that uint8 cannot hold: write 'to_dtype: {dtype: float32, scale: true}', and "
            "'normalize', before it",
        ),
        (
            "{value: rand}",
            "2:27: random_erasing.value is 'rand', but should be one number, a list with one for "
            "each channel, or 'random'",
        ),
        (
            "{value: [1, 2]}",
            "2:3: random_erasing cannot stand here: value has 2 numbers, but the image has 3 "
            "channels: write one, or 3",
        ),
        (
            "{value: 256}",
            "2:3: random_erasing cannot stand here: value is 256, but uint8 holds 0 to 255: write "
            "a number between them",
        ),
        (
            "{value: [0.485, 0.456, 0.406]}",
            "2:3: random_erasing cannot stand here: value is 0.485, but uint8 holds whole numbers "
            f"from 0 to 255: write one of them, or '{FLOAT}' before it",
        ),
        (
            "{scale: [0.5, 1.5]}",
            "2:33: random_erasing.scale.1 is 1.5, but should be at most 1",
        ),
        (
            "{scale: [0.5, 0.2]}",
            "2:27: random_erasing.scale is [0.5, 0.2], but should be [0.2, 0.5]: the smaller "
            "number first",
        ),
        (
            "{scale: 0.5}",
            "2:27: random_erasing.scale is 0.5, but should be [min, max], each from 0 to 1",
        ),
        (
            "{ratio: [0, 1]}",
            "2:28: random_erasing.ratio.0 is 0, but should be above 0",
        ),
        (
            "{inplace: true}",
            "2:20: random_erasing.inplace: unknown key; known: p, ratio, scale, value",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"random_erasing: {text}") == [message]


def test_values_of_normalized_images_may_be_any() -> None:
    build("decode", FLOAT, NORM, "random_erasing: {value: [-0.3, 1e3, 0.5]}")
