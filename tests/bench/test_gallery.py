"""Pictures of what steps do."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.bench.gallery import LONGEST, Gallery, open_gallery, write_title
from gpupipe.bench.gallery_page import DRAWS
from gpupipe.pipeline.step_registry import STEPS


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph that is larger than the pictures, wide, with a bright left half."""
    pixels = np.random.default_rng(1).integers(0, 100, (200, 400, 3), np.uint8)
    pixels[:, :200] += 100
    path = tmp_path_factory.mktemp("photograph") / "wide.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def gallery_of_a_face() -> Iterator[Gallery]:
    with open_gallery() as gallery:
        yield gallery


def draws(gallery: Gallery, name: str, **parameters: object) -> list[np.ndarray]:
    return [np.asarray(image) for image in gallery.draw_step(name, parameters or None).images]


def test_the_original_comes_first_and_eight_draws_differ(photograph: Path) -> None:
    with open_gallery(photograph) as gallery:
        original, *drawn = draws(gallery, "random_affine", degrees=30)
    with Image.open(photograph) as file:
        file.thumbnail((LONGEST, LONGEST))
        assert np.array_equal(original, np.asarray(file))
    assert len(drawn) == DRAWS
    assert len({image.tobytes() for image in (original, *drawn)}) == DRAWS + 1


def test_a_step_that_draws_nothing_has_one_picture(photograph: Path) -> None:
    with open_gallery(photograph) as gallery:
        original, gray = draws(gallery, "grayscale", num_output_channels=3)
    assert not np.array_equal(original, gray)
    assert np.ptp(gray, axis=-1).max() == 0


def test_floats_and_normalized_floats_are_shown(photograph: Path) -> None:
    with open_gallery(photograph) as gallery:
        original, scaled = draws(gallery, "to_dtype", dtype="float32", scale=True)
        assert np.array_equal(original, scaled)
        _, stretched = draws(gallery, "normalize", mean=0.5, std=0.1)
    assert (stretched.min(), stretched.max()) == (0, 255)


def test_engines_make_the_same_draws(photograph: Path) -> None:
    made = []
    for engine in ("dali", "dataloader", None):
        with open_gallery(photograph, engine, seed=5) as gallery:
            made.append(draws(gallery, "random_horizontal_flip"))
    assert all(
        np.array_equal(a, b) for other in made[1:] for a, b in zip(made[0], other, strict=True)
    )
    kinds = {image.tobytes() for image in made[0]}
    assert len(kinds) == 2


def test_a_step_without_torch_runs_on_dali_unless_another_engine_is_named(photograph: Path) -> None:
    with open_gallery(photograph) as gallery:
        original, sphere = draws(gallery, "dali", op="sphere")
        assert not np.array_equal(original, sphere)
    with (
        open_gallery(photograph, "dataloader") as gallery,
        pytest.raises(gpupipe.EngineError, match="DALI only"),
    ):
        draws(gallery, "dali", op="sphere")


def test_a_pipeline_is_drawn_step_by_step(photograph: Path) -> None:
    with open_gallery(photograph) as gallery:
        rows = gallery.draw_pipeline("imagenet_train")
    assert [row.name for row in rows] == [
        "01_decode",
        "02_random_resized_crop",
        "03_random_horizontal_flip",
        "04_to_dtype",
        "05_normalize",
    ]
    assert [len(row.images) for row in rows] == [2, *[DRAWS + 1] * 4]
    assert rows[1].title == "random_resized_crop: {size: [224, 224]}"
    assert rows[1].images[1].size == (224, 224)


def test_the_steps_of_a_view_follow_those_before_all_views(
    photograph: Path, tmp_path: Path
) -> None:
    text = (
        "steps: [decode]\n"
        "views:\n"
        "  small: {steps: [{random_crop: {size: 40}}]}\n"
        "  gray: {count: 2, steps: [{grayscale: {num_output_channels: 3}}]}\n"
    )
    path = tmp_path / "views.yaml"
    path.write_text(text)
    with open_gallery(photograph) as gallery:
        rows = gallery.draw_pipeline(str(path))
    assert [row.title.partition(" {")[0] for row in rows] == [
        "decode",
        "small/random_crop:",
        "gray_0/grayscale:",
        "gray_1/grayscale:",
    ]
    assert rows[1].name == "02_small_random_crop"
    assert [len(row.images) for row in rows] == [2, DRAWS + 1, 2, 2]
    assert rows[1].images[1].size == (40, 40)
    assert rows[2].images[1].size == rows[0].images[0].size


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("random_affine", {"degrees": "x"}, "random_affine.degrees is 'x'"),
        ("random_affine", {"degres": 3}, "did you mean 'degrees'?"),
        ("normalize", {"mean": [0.5, 0.5], "std": 1}, "mean has 2 numbers"),
    ],
)
def test_mistakes_are_told(photograph: Path, name: str, parameters: dict, words: str) -> None:
    with (
        open_gallery(photograph) as gallery,
        pytest.raises(gpupipe.ConfigError) as error,
    ):
        gallery.draw_step(name, parameters)
    assert words in str(error.value)


def test_a_step_that_fails_on_the_photograph_says_why(photograph: Path) -> None:
    with open_gallery(photograph) as gallery, pytest.raises(gpupipe.GpupipeError) as error:
        gallery.draw_step("random_crop", {"size": 300})
    message = str(error.value)
    assert message.startswith(
        "random_crop: {size: 300} cannot be drawn on this photograph of 250x125"
    )
    assert "needs at least 300x300 pixels" in message
    assert "on_error" not in message, "the gallery has no such setting"
    assert "gpupipe-gallery-" not in message, "nor does the user know the copy of the photograph"


def test_a_step_whose_parameters_depend_on_the_size_has_no_example(photograph: Path) -> None:
    with (
        open_gallery(photograph) as gallery,
        pytest.raises(gpupipe.GpupipeError, match="linear_transformation has no example"),
    ):
        gallery.draw_step("linear_transformation")


@pytest.mark.parametrize("name", sorted({*STEPS.names()} - {"linear_transformation"}))
def test_each_step_is_drawn_and_each_step_of_chance_changes_a_draw(
    gallery_of_a_face: Gallery, name: str
) -> None:
    row = gallery_of_a_face.draw_step(name)
    assert row.title.startswith(name)
    original, *drawn = (image.tobytes() for image in row.images)
    if STEPS.find(name).num_uniforms:
        assert len(drawn) == DRAWS
        assert set(drawn) - {original}


@pytest.mark.parametrize(("name", "count"), [("five_crop", 5), ("ten_crop", 8)])
def test_the_images_that_a_step_makes_of_one_are_shown(
    gallery_of_a_face: Gallery, name: str, count: int
) -> None:
    original, *crops = (np.asarray(image) for image in gallery_of_a_face.draw_step(name).images)
    assert len(crops) == count
    assert np.array_equal(crops[0], original[:150, :150])
    assert np.array_equal(crops[3], original[-150:, -150:])


def test_a_title_rounds_what_floats_cannot_hold() -> None:
    parameters = {"brightness": [1 - 0.8, 1 + 0.8], "p": 1}
    assert write_title("jitter", parameters) == "jitter: {brightness: [0.2, 1.8], p: 1}"


def test_steps_of_detection_are_drawn_with_boxes(gallery_of_a_face: Gallery) -> None:
    plain = np.asarray(gallery_of_a_face.draw_step("random_horizontal_flip").images[0])
    row = gallery_of_a_face.draw_step("random_iou_crop")
    original = np.asarray(row.images[0])
    assert original.shape == plain.shape
    assert 0.005 < (original != plain).any(-1).mean() < 0.2, "frames and points"
    assert len({image.size for image in row.images}) > 3
    names = [part.name for part in gallery_of_a_face.draw_pipeline("ssdlite")]
    assert names[:2] == ["01_decode", "02_random_iou_crop"]
