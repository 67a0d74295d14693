"""What is said of a step that is written wrong, and of a file that is no pipeline."""

import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.pipeline.build import build_pipeline, find_pipeline
from gpupipe.pipeline.pipeline import IMAGE
from gpupipe.schema import yaml_files
from helpers.annotated_folder import SPECS
from helpers.pipeline_texts import DEGREES, PER_CHANNEL, SHAPE, SIDES, STEPS, mistakes


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
            "2:3: there is no step 'RandomAffine': write 'random_affine'",
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
        ("resize: 256", "2:11: resize is 256, but should be a mapping, such as {size: 256}"),
        (
            "resize: [2, 5]",
            "2:11: resize is [2, 5], but should be a mapping, such as {size: [2, 5]}",
        ),
        (
            "to_dtype: float32",
            "2:13: to_dtype is 'float32', but should be a mapping, such as {dtype: float32}",
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
            "one number a for [-a, a], or [min, max])",
        ),
        (
            "random_affine:",
            "2:3: random_affine.degrees: missing; write 'degrees: ...' (the angle, clockwise: "
            "one number a for [-a, a], or [min, max])",
        ),
        (
            "random_affine: {}",
            "2:3: random_affine.degrees: missing; write 'degrees: ...' (the angle, clockwise: "
            "one number a for [-a, a], or [min, max])",
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
            "2:38: random_affine.scale is 2, but should be [min, max], both above 0",
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
            "2:11: resize: size is empty, but should be one number, or [height, width]",
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
            "2:21: to_dtype.dtype is 'double', but should be 'float32', 'float16', "
            "'float64', 'uint8', 'uint16', 'uint32', 'uint64', 'int8', 'int16', 'int32', 'int64' "
            "or 'bool'",
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
    ("text", "message"),
    [
        ("", f"p:1:1: there is no step: a pipeline is a list of steps, {SHAPE}"),
        ("[]", f"p:1:1: there is no step: a pipeline is a list of steps, {SHAPE}"),
        ("decode", f"p:1:1: this is no list: a pipeline is a list of steps, {SHAPE}"),
        (
            "# mine\npipeline: [decode]",
            f"p:2:1: this is a config, and no pipeline: a pipeline is a list of steps, {SHAPE}",
        ),
        (
            "# mine\nsteps_: [decode]",
            f"p:2:1: this is no list: a pipeline is a list of steps, {SHAPE}",
        ),
    ],
    ids=str,
)
def test_a_file_that_is_no_pipeline(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_pipeline("p", yaml_files.parse(text, "p"))
    assert str(error.value) == message


MASKED = {"image": Spec(), "mask": Spec(kind="mask")}


@pytest.mark.parametrize("name", yaml_files.names("pipelines"))
def test_the_shipped_pipelines_load(name: str) -> None:
    fields = MASKED if name == "segmentation_train" else IMAGE
    built = build_pipeline(name, find_pipeline(name, None), (), fields, SPECS)
    assert {e.output_spec.kind for e in built.entries_on("mask")} <= {"mask"}
    assert (built.name, built.output_spec.dtype, built.output_spec.channels) == (name, "float32", 3)


# Short forms, as in torchvision
