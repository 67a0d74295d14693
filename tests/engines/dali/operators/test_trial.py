"""What is learnt of an operator when a pipeline is checked, and which operators are refused."""

import pytest

import gpupipe
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.trial import KnownGood
from helpers.pipeline_texts import FLOAT, build, mistakes

DECODE = "decode"


def output(*steps: str) -> str:
    return str(build(DECODE, *steps).output_spec)


@pytest.mark.parametrize(
    ("steps", "made"),
    [
        (["dali: {op: hsv, hue: {uniform: [0, 9]}}"], "(3, ?, ?) uint8"),
        ([FLOAT, "dali: {op: hsv, dtype: FLOAT}"], "(3, ?, ?) float32"),
        (["dali: {op: rotate, angle: 7, size: [30, 40]}"], "(3, 30, 40) uint8"),
        (["dali: {op: rotate, angle: 7, keep_size: true}"], "(3, ?, ?) uint8"),
        (["dali: {op: crop, crop: [1000, 300]}"], "(3, 1000, 300) uint8"),
        (["dali: {op: slice, start: [5], shape: [20], axes: [0]}"], "(3, 20, ?) uint8"),
        (
            ["center_crop: {size: [60, 80]}", "dali: {op: resize, resize_shorter: 30}"],
            "(3, 30, 40) uint8",
        ),
        (
            ["dali: {op: color_space_conversion, image_type: RGB, output_type: GRAY}"],
            "(1, ?, ?) uint8",
        ),
        (["dali: {op: crop_mirror_normalize, output_layout: HWC}"], "(3, ?, ?) float32"),
        (["dali: {op: cast, dtype: float16}"], "(3, ?, ?) float16"),
        (["dali: {op: experimental.median_blur}"], "(3, ?, ?) uint8"),
    ],
    ids=str,
)
def test_the_output_is_known(steps: list[str], made: str) -> None:
    assert output(*steps) == made


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            "rotate, angle: {normal: [0, 9]}",
            ("depends on the image or the draws", "'size' or 'keep_size'"),
        ),
        ("resize, resize_shorter: 30", ("depends on the image", "set its argument 'size'")),
        ("crop_mirror_normalize", ("layout 'CHW'", "write 'output_layout: HWC'")),
        ("stack", ("array without a layout", "leave it out")),
        ("normalize, batch: true", ("the other images of its batch", "each image alone")),
        ("pad", ("the other images of its batch",)),
        (
            "gaussian_blur, window_size: 4",
            ("DALI refuses gaussian_blur", "odd length", "change its arguments"),
        ),
        ("nonsilent_region", ("2 outputs, and not one",)),
    ],
    ids=str,
)
def test_what_later_steps_could_not_know_is_refused(step: str, words: tuple[str, ...]) -> None:
    (mistake,) = mistakes(DECODE, f"dali: {{op: {step}}}")
    assert mistake.startswith("2:3: dali cannot stand here: ")
    assert all(word in mistake for word in words), mistake


def test_it_needs_pixels_of_height_and_width() -> None:
    assert mistakes("dali: {op: water}", DECODE) == [
        "1:3: dali cannot stand here: what reaches it are still encoded bytes: move it after "
        "'decode'"
    ]


def test_a_mistake_leaves_later_steps_checked() -> None:
    assert len(mistakes(DECODE, "dali: {op: watr}", "center_crop: {size: 0}")) == 2


def test_a_known_good_image_passes_where_the_machine_works_also_after_closing() -> None:
    known_good = KnownGood(None)
    for _ in range(2):
        known_good.check("Failed to decode")
    known_good.close()
    known_good.close()
    known_good.check("Failed to decode")


def test_a_decoder_that_fails_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that is given no image stands in for one that does not work."""
    working, known_good = ops.decode, KnownGood(None)
    monkeypatch.setattr(ops, "decode", lambda data, *others: working(data[4:], *others))
    for _ in range(2):
        with pytest.raises(
            gpupipe.EngineError, match=r"nothing is wrong with.*to blame for 'Failed to decode #3'"
        ):
            known_good.check("Error in CPU operator\nFailed to decode #3")
    monkeypatch.undo()
    known_good.check("Failed to decode")
