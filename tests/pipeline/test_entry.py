"""Entries: what their steps' code may do wrong, and what is said of steps that do not fit."""

from typing import Any

import numpy as np
import pytest

from gpupipe.errors import ConfigError
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step import Spec, Step
from gpupipe.sampling import draws
from gpupipe.schema import yaml_files
from helpers.pipeline_texts import FLOAT, NORM, STEPS, build, mistakes


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
                "3:3: random_crop cannot stand here: the crop needs at least 64x64 pixels, but the "
                "image has 32x32: write a smaller size, resize first, or pad (random_crop: "
                "pad_if_needed: true)"
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
    unknown = Spec.of_image(None)
    parameters: dict[str, Any] = yaml_files.parse(text.replace("FILL", "[1, 2]"), "p").data[name]
    assert (
        step_registry.STEPS.find(name).model_validate(parameters).infer_spec(unknown).channels
        is None
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


class _NeedsChannels(Step):
    def infer_spec(self, input_spec: Spec) -> Spec:
        return input_spec.with_channels(None) if input_spec.layout.index("C") == 0 else input_spec


def test_a_mistake_on_arrays_is_reported_beside_a_step_that_cannot_take_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = step_registry.STEPS.find
    monkeypatch.setattr(
        step_registry.STEPS,
        "find",
        lambda name: _NeedsChannels if name == "needs_channels" else find(name),
    )
    document = yaml_files.parse("- random_affine: {degrees: 3}\n- needs_channels\n", "p")
    with pytest.raises(ConfigError, match="p:1:3: random_affine cannot stand here: it works on "):
        build_pipeline("p", document, (), {"array": Spec.of_array("int64", (3, 8, 8), "CHW")})
