from __future__ import annotations

from typing import Any

import numpy as np
import pydantic
import pytest

from gpupipe.errors import ConfigError
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.build import build_pipeline, find_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec, Step, StepIncompatible
from gpupipe.runtime import plugins
from gpupipe.sampling import draws
from gpupipe.schema import builtin_configs, yaml_parser

STEPS = ", ".join(step_registry.names())
SHAPE = "each '- name: {parameter: value}' or '- name'"


def build(*steps: str) -> Pipeline:
    """The pipeline in a file "p" with one of these a line, behind a dash."""
    return build_pipeline("p", yaml_parser.parse("".join(f"- {s}\n" for s in steps), "p"))


def mistakes(*steps: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        build(*steps)
    return [str(p).removeprefix("p:") for p in error.value.problems]


FLOAT, NORM = "to_dtype: {dtype: float32, scale: true}", "normalize: {mean: 0.5, std: 0.2}"
DEGREES = "a number a of at least 0 for [-a, a], or [least, most]"
SIDES = "one number, [left and right, top and bottom], or [left, top, right, bottom]"
PER_CHANNEL = "one number, or a list with one for each channel"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # names
        (
            "random_afine: {degrees: 3}",
            "2:3: unknown step 'random_afine'; did you mean 'random_affine'?",
        ),
        (
            "RandomAffine: {degrees: 3}",
            "2:3: unknown step 'RandomAffine'; did you mean 'random_affine'?",
        ),
        ("mosaic", f"2:3: unknown step 'mosaic'; known: {STEPS}"),
        ("__init__", f"2:3: unknown step '__init__'; known: {STEPS}"),
        ("a.b", f"2:3: unknown step 'a.b'; known: {STEPS}"),
        ("3: {size: 2}", f"2:3: unknown step '3'; known: {STEPS}"),
        # what is no step
        ("3", "2:3: a step is 3, but should be '- name: {parameter: value}' or '- name'"),
        ("yes", "2:3: a step is true, but should be '- name: {parameter: value}' or '- name'"),
        ("", "2:2: a step is empty, but should be '- name: {parameter: value}' or '- name'"),
        ("{}", "2:3: a step is {}, but should be '- name: {parameter: value}' or '- name'"),
        (
            "[resize]",
            "2:3: a step is ['resize'], but should be '- name: {parameter: value}' or '- name'",
        ),
        (
            "{resize: {size: 3}, pad: {padding: 1}}",
            "2:3: one step has 2 names (resize, pad): begin each step with a dash, and indent "
            "its parameters below its name",
        ),
        (
            "random_affine:\n  degrees: 5",
            "2:3: one step has 2 names (random_affine, degrees): begin each step with a dash, "
            "and indent its parameters below its name",
        ),
        ("resize: 256", "2:11: resize is 256, but should be keys with values, such as {size: 256}"),
        (
            "resize: [2, 5]",
            "2:11: resize is [2, 5], but should be keys with values, such as {size: [2, 5]}",
        ),
        (
            "to_dtype: float32",
            "2:13: to_dtype is 'float32', but should be keys with values, such as {dtype: float32}",
        ),
        # parameters: keys
        (
            "random_affine: {degres: 5}",
            "2:19: random_affine.degres: unknown key; did you mean 'degrees'?",
        ),
        (
            "random_affine: {degrees: 5, angle: 3}",
            "2:31: random_affine.angle: unknown key; known: center, degrees, fill, "
            "interpolation, scale, shear, translate",
        ),
        (
            "random_affine",
            "2:3: random_affine.degrees: missing; write 'degrees: ...' (the angle, clockwise: "
            "one number a for [-a, a], or [least, most])",
        ),
        (
            "random_affine:",
            "2:3: random_affine.degrees: missing; write 'degrees: ...' (the angle, clockwise: "
            "one number a for [-a, a], or [least, most])",
        ),
        (
            "random_affine: {}",
            "2:3: random_affine.degrees: missing; write 'degrees: ...' (the angle, clockwise: "
            "one number a for [-a, a], or [least, most])",
        ),
        # parameters: kinds
        (
            "random_affine: {degrees: [1, 2, 3]}",
            f"2:28: random_affine.degrees is [1, 2, 3], but should be {DEGREES}",
        ),
        (
            "random_affine: {degrees: [1]}",
            f"2:28: random_affine.degrees is [1], but should be {DEGREES}",
        ),
        (
            "random_affine: {degrees: ten}",
            f"2:28: random_affine.degrees is 'ten', but should be {DEGREES}",
        ),
        (
            "random_affine: {degrees: yes}",
            f"2:28: random_affine.degrees is true, but should be {DEGREES}",
        ),
        (
            "random_affine: {degrees: -3}",
            f"2:28: random_affine.degrees is -3, but should be {DEGREES}",
        ),
        (
            "random_affine: {degrees: [on, 3]}",
            "2:29: random_affine.degrees.0 is true, but should be a number",
        ),
        (
            "random_affine: {degrees: [1, x]}",
            "2:32: random_affine.degrees.1 is 'x', but should be a number",
        ),
        (
            "random_affine: {degrees: .inf}",
            "2:28: random_affine.degrees is inf, but should be a finite number",
        ),
        (
            "random_affine: {degrees: [.nan, 3]}",
            "2:29: random_affine.degrees.0 is nan, but should be a finite number",
        ),
        (
            "random_affine: {degrees: 5, translate: 0.1}",
            "2:42: random_affine.translate is 0.1, but should be [x, y], each from 0 to 1",
        ),
        (
            "random_affine: {degrees: 5, center: 3}",
            "2:39: random_affine.center is 3, but should be [x, y] in pixels",
        ),
        (
            "random_affine: {degrees: 5, scale: 2}",
            "2:38: random_affine.scale is 2, but should be [least, most], both above 0",
        ),
        (
            "random_affine: {degrees: 5, interpolation: bicubic}",
            "2:46: random_affine.interpolation is 'bicubic', but should be 'nearest' or 'bilinear'",
        ),
        (
            "random_affine: {degrees: 5, shear: [1, 2, 3]}",
            "2:38: random_affine.shear is [1, 2, 3], but should be "
            "a number a of at least 0 for x in [-a, a], [a, b] for x, or [a, b, c, d] for x in "
            "[a, b] and y in [c, d]",
        ),
        (
            "resize: {size: big}",
            "2:18: resize.size is 'big', but should be one number, or [height, width]",
        ),
        (
            "resize: {size: [1, 2, 3]}",
            "2:18: resize.size is [1, 2, 3], but should be one number, or [height, width]",
        ),
        (
            "resize: {size: }",
            "2:17: resize.size is empty, but should be one number, or [height, width]",
        ),
        (
            "resize: {size: yes}",
            "2:18: resize.size is true, but should be one number, or [height, width]",
        ),
        ("resize: {size: 2.5}", "2:18: resize.size is 2.5, but should be a whole number"),
        ("resize: {size: [3, 2.5]}", "2:22: resize.size.1 is 2.5, but should be a whole number"),
        (
            "center_crop: {size: {h: 3, w: 4}}",
            "2:23: center_crop.size is {h: 3, w: 4}, but should be one number, or [height, width]",
        ),
        (
            "resize: {size: 8, antialias: 3}",
            "2:32: resize.antialias is 3, but should be true or false",
        ),
        (
            "resize: {size: 8, interpolation: on}",
            "2:36: resize.interpolation is true, but should be 'nearest', 'bilinear' or "
            "'bicubic'; "
            "YAML reads yes, no, on and off as true and false: put a word in quotes",
        ),
        ("pad: {padding: [1, 2, 3]}", f"2:18: pad.padding is [1, 2, 3], but should be {SIDES}"),
        ("pad: {padding: 1, fill: []}", f"2:27: pad.fill is [], but should be {PER_CHANNEL}"),
        ("pad: {padding: 1, fill: red}", f"2:27: pad.fill is 'red', but should be {PER_CHANNEL}"),
        (
            "grayscale: {num_output_channels: 2}",
            "2:36: grayscale.num_output_channels is 2, but should be 1 or 3",
        ),
        (
            "grayscale: {num_output_channels: yes}",
            "2:36: grayscale.num_output_channels is true, but should be a whole number",
        ),
        (
            "to_dtype: {dtype: double}",
            "2:21: to_dtype.dtype is 'double', but should be 'float32', 'float16', 'uint8', "
            "'float64', 'int8', 'int16', 'int32', 'int64', 'uint16', 'uint32', "
            "'uint64' or 'bool'",
        ),
        # parameters: ranges
        ("resize: {size: -3}", "2:18: resize.size is -3, but should be at least 1"),
        (
            "center_crop: {size: [224, 0]}",
            "2:29: center_crop.size.1 is 0, but should be at least 1",
        ),
        (
            "random_horizontal_flip: {p: 2}",
            "2:31: random_horizontal_flip.p is 2, but should be at most 1",
        ),
        (
            "random_horizontal_flip: {p: -0.5}",
            "2:31: random_horizontal_flip.p is -0.5, but should be at least 0",
        ),
        (
            "random_affine: {degrees: 5, translate: [0.1, 1.5]}",
            "2:48: random_affine.translate.1 is 1.5, but should be at most 1",
        ),
        (
            "random_affine: {degrees: 5, scale: [0, 1]}",
            "2:39: random_affine.scale.0 is 0, but should be above 0",
        ),
        ("pad: {padding: -1}", "2:18: pad.padding is -1, but should be at least 0"),
        (
            "pad: {padding: 1, fill: 300}",
            "2:3: pad cannot stand here: fill is 300, but uint8 holds 0 to 255: write a number "
            "between them",
        ),
        (
            "random_affine: {degrees: [5, -5]}",
            "2:28: random_affine.degrees is [5, -5], but should be [-5, 5]: the smaller number "
            "first",
        ),
        (
            "random_affine: {degrees: 5, scale: [2, 0.5]}",
            "2:38: random_affine.scale is [2, 0.5], but should be [0.5, 2]: the smaller number "
            "first",
        ),
        (
            "random_affine: {degrees: 5, shear: [-1, 1, 4, 2]}",
            "2:38: random_affine.shear is [-1, 1, 4, 2], but should be [-1, 1, 2, 4]: the "
            "smaller number first",
        ),
        (
            "random_resized_crop: {size: 8, ratio: [2, 1]}",
            "2:41: random_resized_crop.ratio is [2, 1], but should be [1, 2]: the smaller number "
            "first",
        ),
        # parameters that do not go together
        (
            "resize: {size: [3, 4], max_size: 9}",
            "2:11: resize: max_size is 9, but goes only with one number as size, and must be "
            "larger than it",
        ),
        (
            "resize: {size: 8, max_size: 8}",
            "2:11: resize: max_size is 8, but goes only with one number as size, and must be "
            "larger than it",
        ),
        (
            "resize: {size: 8, interpolation: bicubic, antialias: false}",
            "2:11: resize: bicubic without antialias differs between engines: set "
            "antialias: true, or take bilinear",
        ),
    ],
    ids=str,
)
def test_a_wrong_step(text: str, message: str) -> None:
    assert mistakes("decode", text) == [message]


@pytest.mark.parametrize(
    ("steps", "messages"),
    [
        (
            ["decode", "decode"],
            ["2:3: decode cannot stand here: the image is decoded already: remove this step"],
        ),
        (
            ["resize: {size: 8}"],
            ["1:3: no step decodes the image: write '- decode' as the first step"],
        ),
        (
            ["resize: {size: 8}", "pad: {padding: 1}"],
            ["1:3: no step decodes the image: write '- decode' as the first step"],
        ),
        (
            ["resize: {size: 8}", NORM],
            [
                "1:3: no step decodes the image: write '- decode' as the first step",
                "2:3: normalize cannot stand here: it needs floats, but gets uint8: write "
                f"'{FLOAT}' before it",
            ],
        ),
        (
            ["resize: {size: 8}", "decode", "pad: {padding: 1}"],
            [
                "1:3: resize cannot stand here: what reaches it are still encoded bytes: move it "
                "after 'decode'"
            ],
        ),
        (
            ["decode", NORM, FLOAT],
            [
                "2:3: normalize cannot stand here: it needs floats, but gets uint8: write "
                f"'{FLOAT}' "
                "before it"
            ],
        ),
        (
            ["decode", FLOAT, "normalize: {mean: [0, 1], std: [1, 1]}"],
            [
                "3:3: normalize cannot stand here: mean has 2 numbers, but the image has 3 "
                "channels: "
                "write one, or 3"
            ],
        ),
        (
            ["decode: {mode: gray}", FLOAT, "normalize: {mean: [0, 1, 2], std: [1, 1, 1]}"],
            [
                "3:3: normalize cannot stand here: mean has 3 numbers, but the image has 1 "
                "channel: "
                "write one"
            ],
        ),
        (
            ["decode", FLOAT, "normalize: {mean: [0, 1], std: 1}"],
            ["3:14: normalize: mean has 2 numbers and std has 1: write one a channel in both"],
        ),
        (
            ["decode", "resize: {size: [32, 32]}", "random_crop: {size: 64}"],
            [
                "3:3: random_crop cannot stand here: it cuts 64x64 out of 32x32 pixels: make size "
                "smaller, resize first, or set pad_if_needed: true"
            ],
        ),
        (
            ["decode", "resize: {size: [8, 8]}", "pad: {padding: 8, padding_mode: reflect}"],
            [
                "3:3: pad cannot stand here: reflect cannot add more pixels than the image "
                "has, less "
                "one: it is 8x8"
            ],
        ),
    ],
    ids=str,
)
def test_a_step_that_cannot_follow(steps: list[str], messages: list[str]) -> None:
    assert mistakes(*steps) == messages


FILLED = [
    "random_affine: {degrees: 5, fill: FILL}",
    "random_rotation: {degrees: 5, fill: FILL}",
    "pad: {padding: 1, fill: FILL}",
    "random_crop: {size: 8, fill: FILL}",
]


@pytest.mark.parametrize("text", FILLED, ids=lambda text: text.partition(":")[0])
def test_fill_has_one_number_or_one_a_channel(text: str) -> None:
    name = text.partition(":")[0]
    for decode, fill, said in (
        ("decode", "[1, 2]", "fill has 2 numbers, but the image has 3 channels: write one, or 3"),
        (
            "decode",
            "[1, 2, 3, 4]",
            "fill has 4 numbers, but the image has 3 channels: write one, or 3",
        ),
        (
            "decode: {mode: gray}",
            "[1, 2, 3]",
            "fill has 3 numbers, but the image has 1 channel: write one",
        ),
    ):
        assert mistakes(decode, text.replace("FILL", fill)) == [
            f"2:3: {name} cannot stand here: {said}"
        ]
    for decode, fill in (
        ("decode", "1"),
        ("decode", "[1]"),
        ("decode", "[1, 2, 3]"),
        ("decode: {mode: gray}", "[7]"),
    ):
        assert build(decode, text.replace("FILL", fill))
    unknown = Spec(encoded=False, channels=None)
    parameters: dict[str, Any] = yaml_parser.parse(text.replace("FILL", "[1, 2]"), "p").data[name]
    assert (
        step_registry.find(name).model_validate(parameters).infer_spec(unknown).channels is None
    ), "where the channels are not known, nothing can be said"


def test_a_wrong_step_does_not_put_the_next_ones_in_the_wrong() -> None:
    assert mistakes("decoed", "resize: {size: 8}", FLOAT, NORM) == [
        "1:3: unknown step 'decoed'; did you mean 'decode'?"
    ]
    assert mistakes("decode: {mode: bgr}", "resize: {size: 8}") == [
        "1:18: decode.mode is 'bgr', but should be 'rgb' or 'gray'"
    ]
    assert mistakes(
        "decode: {mode: bgr}", "pad: {padding: 1, fill: [1]}", "pad: {padding: 1, fill: [1, 2]}"
    ) == ["1:18: decode.mode is 'bgr', but should be 'rgb' or 'gray'"]
    assert mistakes(
        "decode", "grayscale: {num_output_channels: 2}", "pad: {padding: 1, fill: [1, 2]}"
    ) == ["2:36: grayscale.num_output_channels is 2, but should be 1 or 3"]
    assert mistakes("decode", "to_dtyp: {dtype: float32}", NORM) == [
        "2:3: unknown step 'to_dtyp'; did you mean 'to_dtype'?"
    ]
    assert mistakes("decode", "to_dtype: {dtype: real}", NORM)[1:] == []
    assert mistakes(
        "decode", "resize: {size: [4, 4]}", "resize: {size: 0}", "random_crop: {size: 9}"
    ) == ["3:18: resize.size is 0, but should be at least 1"]
    assert mistakes("decode", "my_own_step", NORM) == [
        f"2:3: unknown step 'my_own_step'; known: {STEPS}"
    ]


def test_but_what_is_certain_is_said_at_once() -> None:
    assert mistakes(
        "decode",
        "random_afine: {degrees: 3}",
        "resize: {sise: 8}",
        NORM,
        "decode",
        "pad: {padding: 1, fill: [1, 2]}",
    ) == [
        "2:3: unknown step 'random_afine'; did you mean 'random_affine'?",
        "3:12: resize.sise: unknown key; did you mean 'size'?",
        "4:3: normalize cannot stand here: it needs floats, but gets uint8: write "
        f"'{FLOAT}' before it",
        "5:3: decode cannot stand here: the image is decoded already: remove this step",
        "6:3: pad cannot stand here: fill has 2 numbers, but the image has 3 channels: "
        "write one, or 3",
    ]
    assert mistakes("resise: {size: 8}", "deocde") == [
        "1:3: unknown step 'resise'; did you mean 'resize'?",
        "2:3: unknown step 'deocde'; did you mean 'decode'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"p:1:1: there is no step: a pipeline is a list of steps, {SHAPE}"),
        ("[]", f"p:1:1: there is no step: a pipeline is a list of steps, {SHAPE}"),
        ("decode", f"p:1:1: this is no list: a pipeline is a list of steps, {SHAPE}"),
        (
            "# mine\npipeline: [decode]",
            f"p:2:1: this is no list: a pipeline is a list of steps, {SHAPE}",
        ),
    ],
    ids=str,
)
def test_a_file_that_is_no_pipeline(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_pipeline("p", yaml_parser.parse(text, "p"))
    assert str(error.value) == message


def test_what_comes_out() -> None:
    built = build(
        "decode",
        "random_resized_crop: {size: [32, 48]}",
        "grayscale",
        FLOAT,
        "normalize: {mean: 0.5, std: 0.2}",
    )
    assert built.output_spec == Spec(
        encoded=False, height=32, width=48, channels=1, dtype="float32", at_least=(32, 48)
    )
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


@pytest.mark.parametrize("name", builtin_configs.names("pipelines"))
def test_the_shipped_pipelines_load(name: str) -> None:
    built = build_pipeline(name, find_pipeline(name, None))
    assert (built.name, built.output_spec.dtype, built.output_spec.channels) == (name, "float32", 3)


# Short forms, as in torchvision


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
    document = yaml_parser.parse("- decode\n", "p")
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


def test_a_step_draws_by_its_name_and_number() -> None:
    built = build(
        "decode", "random_horizontal_flip", "random_affine: {degrees: 5}", "random_horizontal_flip"
    )
    assert [e.key for e in built.entries] == [
        "decode",
        "random_horizontal_flip",
        "random_affine",
        "random_horizontal_flip_2",
    ]
    ids = np.arange(1000, dtype=np.int64)
    first, second = (built.entries[i].parameters(1, 2, ids)["flip"] for i in (1, 3))
    assert abs((first == second).mean() - 0.5) < 0.1, "two flips are independent"
    expected = (
        draws.uniform(1, 2, ids, draws.stream("random_horizontal_flip_2"), 1)[:, 0] < 0.5
    ).astype(np.int32)
    assert (second == expected).all()


def test_a_steps_draws_do_not_depend_on_the_other_steps() -> None:
    ids = np.arange(10, dtype=np.int64)
    few, many = (
        build("decode", "random_affine: {degrees: 5}"),
        build("decode", "resize: {size: 8}", "random_vertical_flip", "random_affine: {degrees: 5}"),
    )
    assert (
        few.entries[-1].parameters(1, 2, ids)["angle"]
        == many.entries[-1].parameters(1, 2, ids)["angle"]
    ).all()


def test_a_step_without_chance_draws_nothing() -> None:
    assert build("decode").entries[0].parameters(0, 0, np.arange(3, dtype=np.int64)) == {}


# Steps of others


class Shout(Step):
    """A step of a plugin.

    words: what to say.
    """

    words: tuple[int, int, int]

    def infer_spec(self, given: Spec) -> Spec:
        raise StepIncompatible("it is too loud: whisper")


def test_a_plugins_step_gets_the_same_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name, dist = "shout", None

        def load(self) -> type[Step]:
            return Shout

    monkeypatch.setattr(
        plugins, "entry_points", lambda group, name="shout": [Entry()] if name == "shout" else []
    )
    assert mistakes("decode", "shuot: {words: [1, 2, 3]}") == [
        "2:3: unknown step 'shuot'; did you mean 'shout'?"
    ]
    assert mistakes("decode", "shout") == [
        "2:3: shout.words: missing; write 'words: ...' (what to say)"
    ]
    assert mistakes("decode", "shout: {words: 3}") == [
        "2:18: shout.words is 3, but should be a list"
    ]
    assert mistakes("decode", "shout: {words: [1, 2]}") == [
        "2:18: shout.words is [1, 2], but should be a longer list"
    ]
    assert mistakes("decode", "shout: {words: [1, 2, 3, 4]}") == [
        "2:18: shout.words is [1, 2, 3, 4], but should be a list of at most 3"
    ]
    assert mistakes("decode", "shout: {words: [1, 2, 3]}") == [
        "2:3: shout cannot stand here: it is too loud: whisper"
    ]
    assert mistakes("decode", "shout: {words: 3}", NORM) == [
        "2:18: shout.words is 3, but should be a list"
    ], "what it would have made is not known"


def test_the_kinds_of_pydantic_errors_that_no_step_has_yet_are_still_readable() -> None:
    class Odd(pydantic.BaseModel):
        when: pydantic.AwareDatetime | None = None
        one: pydantic.PositiveInt = 1

    from gpupipe.schema.validation_errors import to_problems

    document = yaml_parser.parse("when: soon\none: -1\n", "p")
    with pytest.raises(pydantic.ValidationError) as error:
        Odd.model_validate(document.data)
    said = [str(p) for p in to_problems(error.value, Odd, document)]
    assert said[0].startswith("p:1:7: when is 'soon', but should be a valid datetime or date")
    assert said[1] == "p:2:6: one is -1, but should be above 0"
