from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.schema import yaml_files
from gpupipe.steps.multi_crop import FiveCrop, TenCrop
from helpers.pipeline_texts import mistakes as list_mistakes
from helpers.served import serving

ENGINES = [{"engine": "dali"}, {"engine": "dataloader", "workers": 0}]
SIZES = [(40, 51), (33, 64), (21, 21), (50, 20)]
"""Odd and even free space on each side; none on one."""
STEPS: list[tuple[str, dict[str, Any], int]] = [
    ("five_crop", {"size": 20}, 5),
    ("five_crop", {"size": [21, 17]}, 5),
    ("ten_crop", {"size": 20}, 10),
    ("ten_crop", {"size": [21, 17], "vertical_flip": True}, 10),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("crops")
    (root / "class").mkdir()
    for n, size in enumerate(SIZES):
        pixels = np.random.default_rng(n).integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(root / "class" / f"{n}.png")
    return root


def expected(name: str, step: dict[str, Any], image: torch.Tensor) -> list[torch.Tensor]:
    size = step["size"] if isinstance(step["size"], list) else [step["size"]] * 2
    if name == "five_crop":
        return list(F.five_crop(image, size))
    return list(F.ten_crop(image, size, step.get("vertical_flip", False)))


def config(root: Path, name: str, step: dict[str, Any], count: int, *more: Any) -> dict[str, Any]:
    views = {"crop": {"count": count, "steps": [{name: step}, *more]}}
    return {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": {"steps": ["decode"], "views": views},
        "loader": {"batch_size": 4, "device": "cpu", "ids": True},
    }


@pytest.mark.parametrize("engine", ENGINES, ids=["dali", "dataloader"])
@pytest.mark.parametrize(("name", "step", "count"), STEPS, ids=str)
def test_the_fields_are_torchvisions_crops_in_its_order(
    images: Path, engine: dict[str, Any], name: str, step: dict[str, Any], count: int
) -> None:
    with gpupipe.load(config(images, name, step, count), **engine) as loader:
        batch = next(iter(loader))
    assert [key for key in batch if key.startswith("crop")] == [f"crop_{n}" for n in range(count)]
    for row, id in enumerate(batch["id"].tolist()):
        with Image.open(images / "class" / f"{id}.png") as file:
            image = torch.from_numpy(np.asarray(file).copy()).permute(2, 0, 1)
        for n, crop in enumerate(expected(name, step, image)):
            assert torch.equal(batch[f"crop_{n}"][row], crop), (id, n)


def test_steps_after_the_crop_run_on_each(images: Path) -> None:
    steps = [
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": 1, "std": 2}},
    ]
    made = []
    for engine in ENGINES:
        written = config(images, "ten_crop", {"size": 20}, 10, *steps)
        with gpupipe.load(written, shuffle=False, **engine) as loader:
            made.append(next(iter(loader)))
    for n in range(10):
        a, b = (batch[f"crop_{n}"] for batch in made)
        assert (a.shape, a.dtype) == ((4, 3, 20, 20), torch.float32)
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize("engine", ENGINES, ids=["dali", "dataloader"])
def test_an_image_that_is_too_small_is_named(images: Path, engine: dict[str, Any]) -> None:
    written = config(images, "five_crop", {"size": [20, 21]}, 5)
    with (
        gpupipe.load(written, **engine) as loader,
        pytest.raises(gpupipe.SampleError, match=r"3\.png"),
    ):
        list(loader)


def test_an_image_that_is_too_small_is_refused_in_torch() -> None:
    step = FiveCrop.model_validate({"size": 20}).select_view(0)
    with pytest.raises(
        SampleIncompatibleError, match=r"the crop needs at least 20x20 pixels, .* 20x19"
    ):
        step.torch(torch.zeros(3, 20, 19), {})


def test_each_copy_has_the_number_of_its_crop_and_no_other() -> None:
    whole = TenCrop.model_validate({"size": 4})
    parts = [whole.select_view(n) for n in range(10)]
    corners = [part.anchor(np.array([10.0, 20.0])).tolist() for part in parts]
    assert corners[:5] == [[0, 0], [0, 16], [6, 0], [6, 16], [3, 8]]
    assert corners[5:] == [[0, 16], [0, 0], [6, 16], [6, 0], [3, 8]]
    assert [part.is_mirrored for part in parts] == [False] * 5 + [True] * 5
    assert [part.crop for part in parts] == list(range(10))
    assert [part.select_view(0) for part in parts] == parts


def test_a_crop_may_be_taken_alone(images: Path) -> None:
    """As the first step of a view of a server is, when a client builds it again."""
    steps = ["decode", {"five_crop": {"size": 20, "crop": 3}}]
    data = {"source": "folder", "root": str(images)}
    with gpupipe.load({"data": data, "pipeline": steps}, device="cpu", batch_size=4) as loader:
        alone = next(iter(loader))["image"]
    with gpupipe.load(config(images, "five_crop", {"size": 20}, 5)) as loader:
        assert torch.equal(alone, next(iter(loader))["crop_3"])


def test_a_server_sends_the_crops(images: Path) -> None:
    written = config(images, "ten_crop", {"size": 20}, 10)
    names = [f"crop_{n}" for n in range(10)]
    with gpupipe.load(written, shuffle=False) as loader:
        expected = next(iter(loader))
    with serving(written) as server, gpupipe.connect(server.address, device="cpu") as client:
        made = next(iter(client))
    assert [name for name in made if name.startswith("crop")] == names
    for name in names:
        found = {image.numpy().tobytes() for image in made[name]}
        assert found == {image.numpy().tobytes() for image in expected[name]}


TEXT = """\
steps: [decode, {{resize: {{size: {resize}}}}}]
views:
  crop:
    count: {count}
    steps:
      - {step}
"""


def build(step: str, count: int, resize: str = "32") -> Pipeline:
    text = TEXT.format(step=step, count=count, resize=resize)
    return build_pipeline("p", yaml_files.parse(text, "p"))


def mistakes(step: str, count: int, resize: str = "32") -> list[str]:
    with pytest.raises(ConfigError) as e:
        build(step, count, resize)
    return [str(p) for p in e.value.problems]


def test_crops_have_a_size() -> None:
    built = build("five_crop: {size: [9, 8]}", 5)
    assert built.outputs == tuple(f"crop_{n}" for n in range(5))
    assert {str(built.output_spec_of(name)) for name in built.outputs} == {"(3, 9, 8) uint8"}
    assert build("ten_crop: {size: 32}", 10, "[32, 32]").output_spec.size == (32, 32)


OUTSIDE = (
    "five_crop cannot stand here: it makes 5 images of one: write it as the first step of a view "
    "with 'count: 5', under 'views'"
)


@pytest.mark.parametrize("count", [1, 2, 10])
def test_another_count_is_refused(count: int) -> None:
    assert mistakes("five_crop: {size: 9}", count) == [f"p:6:9: {OUTSIDE}"]


@pytest.mark.parametrize(
    "steps",
    [
        ["decode", "five_crop: {size: 9}"],
        ["decode", "random_apply: {transforms: [{five_crop: {size: 9}}]}"],
    ],
)
def test_it_stands_nowhere_else(steps: list[str]) -> None:
    (mistake,) = list_mistakes(*steps)
    assert "it makes 5 images of one: write it as the first step of a view" in mistake


def test_it_comes_first_in_its_view() -> None:
    text = TEXT.format(step="random_horizontal_flip", count=5, resize=32)
    with pytest.raises(ConfigError) as e:
        build_pipeline("p", yaml_files.parse(f"{text}      - five_crop: {{size: 9}}\n", "p"))
    assert [str(p) for p in e.value.problems] == [f"p:7:9: {OUTSIDE}"]


@pytest.mark.parametrize(
    ("step", "resize", "message"),
    [
        (
            "five_crop: {size: 33}",
            "[32, 40]",
            "five_crop cannot stand here: the size is 33x33, but the images have 32x40 pixels: "
            "write a smaller size, or a resize under 'steps'",
        ),
        ("five_crop: {size: 9, crop: 5}", "32", "crop is 5, but should be at most 4"),
        ("five_crop: {size: 0}", "32", "five_crop.size is 0, but should be at least 1"),
        ("five_crop", "32", "five_crop.size"),
        ("five_crop: {size: 9, vertical_flip: true}", "32", "unknown key; known: crop, size"),
    ],
)
def test_mistakes(step: str, resize: str, message: str) -> None:
    (mistake,) = mistakes(step, 5, resize)
    assert message in mistake


def test_arrays_without_height_and_width_are_refused() -> None:
    step = FiveCrop.model_validate({"size": 9}).select_view(0)
    with pytest.raises(Exception, match="works on height and width"):
        step.infer_spec(Spec.of_array("uint8", [30], "L"))
