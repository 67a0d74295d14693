"""What comes out of a pipeline, and its fingerprint."""

import pytest

from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step import Spec
from gpupipe.schema import yaml_files
from helpers.pipeline_texts import FLOAT, build


def test_what_comes_out() -> None:
    built = build(
        "decode",
        "random_resized_crop: {size: [32, 48]}",
        "grayscale",
        FLOAT,
        "normalize: {mean: 0.5, std: 0.2}",
    )
    assert built.output_spec == Spec.of_image(1, 32, 48, dtype="float32").with_values("normalized")
    assert [e.where for e in built.entries] == [f"p:{line}:3" for line in range(1, 6)]
    assert [str(e.input_spec) for e in built.entries[:3]] == [
        "encoded bytes",
        "(3, ?, ?) uint8",
        "(3, 32, 48) uint8",
    ]
    assert all(
        after.input_spec == before.output_spec
        for before, after in zip(built.entries, built.entries[1:], strict=False)
    )


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("center_crop: {size: 224}", "center_crop: {size: [224, 224]}"),
        ("center_crop: {size: [224]}", "center_crop: {size: [224, 224]}"),
        (
            "random_crop: {size: 8, padding: 2}",
            "random_crop: {size: [8, 8], padding: [2, 2, 2, 2]}",
        ),
        ("pad: {padding: [2]}", "pad: {padding: [2, 2, 2, 2]}"),
        ("pad: {padding: [1, 2]}", "pad: {padding: [1, 2, 1, 2]}"),
        ("pad: {padding: 1, fill: 7}", "pad: {fill: [7.0], padding: 1}"),
        ("resize: {size: [256]}", "resize: {size: 256}"),
        ("random_affine: {degrees: 5}", "random_affine: {degrees: [-5, 5]}"),
        ("random_affine: {degrees: 5, shear: 3}", "random_affine: {shear: [-3, 3], degrees: 5.0}"),
        (
            "random_affine: {degrees: 5, shear: [2, 3]}",
            "random_affine: {degrees: 5, shear: [2, 3, 0, 0]}",
        ),
        (
            "random_affine: {degrees: 5, scale: [0.5, 2]}",
            "random_affine: {scale: [5e-1, 2.0], degrees: [-5, 5], fill: 0, interpolation: "
            "nearest}",
        ),
        ("random_rotation: {degrees: 0}", "random_rotation: {degrees: [0, 0], expand: no}"),
        ("random_horizontal_flip", "random_horizontal_flip: {p: 0.5}"),
        ("random_horizontal_flip:", "random_horizontal_flip: {}"),
    ],
    ids=str,
)
def test_two_spellings_of_one_pipeline_have_one_fingerprint(short: str, long: str) -> None:
    assert build("decode", short).entries[1].step == build("decode", long).entries[1].step
    assert build("decode", short).fingerprint == build("decode: {mode: rgb}", long).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("center_crop: {size: 224}", "center_crop: {size: [224, 223]}"),
        ("resize: {size: 224}", "resize: {size: [224, 224]}"),
        ("resize: {size: 224}", "resize: {size: 224, antialias: false}"),
        ("random_affine: {degrees: 5}", "random_affine: {degrees: 5.0001}"),
        ("random_affine: {degrees: 5}", "random_rotation: {degrees: 5}"),
        ("random_horizontal_flip", "random_vertical_flip"),
        ("random_horizontal_flip", "random_horizontal_flip: {p: 0.4}"),
    ],
    ids=str,
)
def test_another_pipeline_has_another_fingerprint(one: str, other: str) -> None:
    assert build("decode", one).fingerprint != build("decode", other).fingerprint


def test_the_order_of_the_steps_is_part_of_the_fingerprint() -> None:
    assert (
        build("decode", "random_horizontal_flip", "random_vertical_flip").fingerprint
        != build("decode", "random_vertical_flip", "random_horizontal_flip").fingerprint
    )


def test_a_fingerprint_says_nothing_of_the_files_name() -> None:
    document = yaml_files.parse("- decode\n", "p")
    assert build_pipeline("a", document).fingerprint == build_pipeline("b", document).fingerprint


def test_golden_fingerprint() -> None:
    """A checkpoint holds it, so no release may change it for a pipeline that stays the same."""
    assert (
        build("decode", "random_affine: {degrees: 5}", FLOAT).fingerprint
        == "2ab7059724127bd756b91e123ff7f724"
    )


def test_a_later_parameter_changes_the_fingerprint_if_it_is_not_its_default() -> None:
    as_before, given, other = (
        build(step).fingerprint
        for step in ("decode", "decode: {dtype: uint8}", "decode: {dtype: uint16}")
    )
    assert as_before == given != other


# Draws


def test_a_zero_of_a_short_form_keeps_the_fingerprint_of_older_states() -> None:
    rotation = build("decode", "random_rotation: {degrees: 0.0}")
    assert rotation.fingerprint == "6d3b236322de6cdd893a45a40de90535"
