"""Steps that boxes cannot follow are found when the config is read."""

from typing import Any

import pytest

import gpupipe
from gpupipe.annotations.checks import describe_values, find_immovable
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema import yaml_files
from helpers.annotated_folder import SPECS


def problem_of(*steps: str, **options: Any) -> str:
    text = "".join(f"- {step}\n" for step in steps)
    pipeline = build_pipeline("p", yaml_files.parse(text, "p.yaml"), **options)
    problem = find_immovable(pipeline)
    return "" if problem is None else f"{problem.where}: {problem.what}"


@pytest.mark.parametrize(
    "steps",
    [
        ("decode",),
        ("decode: {apply_exif_orientation: true}", "random_rotation: {degrees: 30, expand: true}"),
        ("decode", "resize: {size: [64, 64]}", "elastic_transform", "random_erasing"),
        ("decode", "random_resized_crop: {size: 32}", "auto_augment", "trivial_augment_wide"),
        ("decode", "random_crop: {size: 64}", "gaussian_noise", "random_perspective"),
    ],
    ids=str,
)
def test_pipelines_that_boxes_follow(steps: tuple[str, ...]) -> None:
    assert problem_of(*steps, annotations=SPECS) == ""


def test_a_mixture_of_moved_images_is_refused_only_with_annotations() -> None:
    steps = ("decode", "resize: {size: [64, 64]}", "aug_mix")
    assert problem_of(*steps) == ""
    problem = problem_of(*steps, annotations=SPECS)
    assert problem.startswith("p.yaml:3:3: aug_mix cannot move the boxes and points")


def test_an_operator_of_dali_is_refused() -> None:
    steps = ("decode", "dali: {op: water}")
    assert "operator water" in problem_of(*steps, annotations=SPECS)


def test_pairs_of_points_are_swapped_where_only_the_index_knows_their_number() -> None:
    specs = SPECS | {
        "keypoints": Spec.of_points(rows_with="boxes", flip_pairs=[(1, 16)]),
        "visibility": Spec.of_rows(
            "int64", rows_with="boxes", shape=(None,), visibility_of="keypoints"
        ),
    }
    assert problem_of("decode", "random_horizontal_flip: {p: 1}", annotations=specs) == ""


def test_a_step_on_boxes_is_told_to_name_their_image() -> None:
    with pytest.raises(gpupipe.ConfigError) as error:
        problem_of("decode", "resize: {size: 32, on: [image, boxes]}", annotations=SPECS)
    assert "p.yaml:2:" in str(error.value)
    assert "'boxes' goes through the steps of its image: write 'on: image'" in str(error.value)


def test_the_arrays_that_come_with_annotations_are_known_before_any_is_read() -> None:
    def values_of(*steps: str) -> list[str]:
        text = "".join(f"- {step}\n" for step in steps)
        return describe_values(
            build_pipeline("p", yaml_files.parse(text, "p.yaml"), annotations=SPECS)
        )

    size, matrix = "orig_size int64 (B, 2)", "to_original float64 (B, 3, 3)"
    assert values_of("decode", "random_rotation: {degrees: 9}") == [size, matrix]
    assert values_of("decode", "random_perspective: {p: 0.1}") == [size]
