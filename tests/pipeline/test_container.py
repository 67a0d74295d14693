"""Steps inside containers: places of mistakes, fingerprints, masks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema.document import Document
from helpers.arrays import ENGINES
from helpers.many_fields import loaded, make, samples
from helpers.pipeline_texts import STEPS, build, mistakes

FLIP = {"random_horizontal_flip": {"p": 1}}
PADDED = {"pad": {"padding": [5, 0, 0, 0], "fill": 3}}


def pipeline(*steps: Any) -> Pipeline:
    return build_pipeline("p", Document("p", ["decode", *steps]))


# --- places of mistakes


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "random_apply: {transforms: [random_afine: {degrees: 5}]}",
            ["2:31: unknown step 'random_afine'; did you mean 'random_affine'?"],
        ),
        (
            "random_apply: {transforms: [resize: {size: 0}, mosaic]}",
            [
                "2:46: resize.size is 0, but should be at least 1",
                f"2:50: unknown step 'mosaic'; known: {STEPS}",
            ],
        ),
        (
            "random_choice: {transforms: [random_order: {transforms: [pad: {padding: -1}]}]}",
            ["2:75: pad.padding is -1, but should be at least 0"],
        ),
        (
            "random_choice: {transforms: [identity, random_apply: {transforms: [normalize: {mean: "
            "0.5, std: 0.2}]}]}",
            [
                "2:70: random_choice cannot stand here: random_apply: normalize: it needs floats, "
                "but gets uint8: write 'to_dtype: {dtype: float32, scale: true}' before it"
            ],
        ),
        (
            "random_apply: {transforms: [decode]}",
            [
                "2:31: random_apply cannot stand here: decode: the image is decoded already: "
                "remove this step"
            ],
        ),
        (
            "random_apply: {transforms: [random_vertical_flip: {on: image}]}",
            [
                "2:54: random_vertical_flip.on: a step of a container or a view has no 'on': it "
                "works where they work"
            ],
        ),
        (
            "random_apply: {transforms: [random_choice: {on: image, transforms: [identity]}]}",
            [
                "2:47: random_choice.on: a step of a container or a view has no 'on': it "
                "works where they work"
            ],
        ),
        (
            "random_apply: {transforms: [3]}",
            ["2:31: a step is 3, but should be '- name: {parameter: value}' or '- name'"],
        ),
        (
            "random_apply: {transform: [identity]}",
            ["2:18: random_apply.transform: unknown key; did you mean 'transforms'?"],
        ),
    ],
)
def test_a_mistake_is_at_the_place_of_the_nested_step(text: str, messages: list[str]) -> None:
    assert mistakes("decode", text) == messages


def test_a_container_before_decode_is_refused() -> None:
    assert mistakes("random_apply: {transforms: [random_vertical_flip]}", "decode") == [
        "1:3: random_apply cannot stand here: what reaches it are still encoded bytes: move it "
        "after 'decode'"
    ]


def test_a_later_step_gets_what_the_container_makes() -> None:
    gray = "random_choice: {transforms: [grayscale, grayscale]}"
    build("decode", gray, "pad: {padding: 1, fill: [1]}")
    assert mistakes("decode", gray, "pad: {padding: 1, fill: [1, 2, 3]}") == [
        "3:3: pad cannot stand here: fill has 3 numbers, but the image has 1 channel: write one"
    ]


def test_short_forms_inside_are_written_out_for_the_input() -> None:
    """One number is a cube of a volume."""
    volume = Spec.of_array("float32", [1, 8, 8, 8], "CDHW")
    crops = [{"center_crop": {"size": 4}}, {"random_crop": {"size": 4}}]
    built = build_pipeline(
        "p",
        Document("p", [{"random_choice": {"transforms": crops}}]),
        fields={"volume": volume},
    )
    (entry,) = built.entries
    assert entry.output_spec.shape == (1, 4, 4, 4)
    drawn = entry.parameters(0, 0, np.arange(20))
    for n in range(20):
        p = {name: values[n] for name, values in drawn.items()}
        assert entry.step.torch(torch.zeros(1, 8, 8, 8), p).shape == (1, 4, 4, 4)


# --- the fingerprint


def test_the_fingerprint_changes_with_each_parameter_inside() -> None:
    def fingerprint(p: float, degrees: float, *more: Any) -> str:
        steps = [{"random_affine": {"degrees": degrees}}, *more]
        return pipeline({"random_apply": {"p": p, "transforms": steps}}).fingerprint

    different = [
        fingerprint(0.5, 5),
        fingerprint(0.6, 5),
        fingerprint(0.5, 6),
        fingerprint(0.5, 5, "identity"),
        pipeline({"random_order": {"transforms": [{"random_affine": {"degrees": 5}}]}}).fingerprint,
    ]
    assert len(set(different)) == len(different)
    assert fingerprint(0.5, 5) == fingerprint(0.5, 5.0)
    deep = [
        pipeline(
            {
                "random_apply": {
                    "transforms": [{"random_choice": {"transforms": [{"pad": {"padding": n}}]}}]
                }
            }
        ).fingerprint
        for n in (1, 2)
    ]
    assert deep[0] != deep[1]


def test_a_place_in_a_file_does_not_change_the_fingerprint() -> None:
    one = build("decode", "random_apply: {transforms: [identity]}")
    other = build("decode", "random_apply:   {transforms:   [identity]}")
    assert (
        one.fingerprint
        == other.fingerprint
        == pipeline({"random_apply": {"transforms": ["identity"]}}).fingerprint
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_take_nearest_pixels_inside_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """And the same draws as their image."""
    data = make(tmp_path, monkeypatch)
    on = {"on": ["image", "mask"]}
    affine = {"degrees": 30, "scale": [0.7, 1.3], "fill": 9, "interpolation": "bilinear"}
    ways = [
        {"random_order": {"transforms": [{"random_affine": affine}, FLIP]}},
        {"random_perspective": {"p": 1, "fill": 9}},
        {"random_zoom_out": {"p": 1, "fill": 9, "side_range": [1.5, 2]}},
        {"random_resize": {"min_size": 20, "max_size": 50}},
    ]
    steps: list[Any] = [
        {"decode": {"on": "image"}},
        {"decode": {"mode": "gray", "on": "mask"}},
        {"random_choice": {"transforms": ways, **on}},
        {"center_crop": {"size": 36, **on}},
    ]
    found = samples(loaded(data, steps, **ENGINES[engine]))
    outside = 0
    for sample in found.values():
        image, mask = sample["image"][0].float(), sample["mask"][0]
        assert set(mask.unique().tolist()) <= {0, 100, 200}, "no class between two, 0 outside"
        inside = mask > 0
        assert ((image - mask)[inside].abs() > 60).float().mean() < 0.12, "along edges alone"
        outside += int((~inside).sum())
    assert outside > 500
