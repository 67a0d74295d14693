"""Mistakes in the arguments of DALI's operators: place, value, rule."""

import pytest

from gpupipe.steps.dali_operators.arguments import DRAWS
from helpers.pipeline_texts import mistakes

NUMBER = f"a number, or {DRAWS}"


@pytest.mark.parametrize(
    ("written", "mistake"),
    [
        ("op: 3", "2:14: dali.op is 3, but should be text"),
        ("brightness: 3", "2:3: dali.op: missing; write 'op: ...'"),
        (
            "op: color_twst",
            "2:10: dali.op: DALI has no operator 'color_twst'; did you mean 'color_twist'?",
        ),
        (
            "op: ColorTwist",
            "2:10: dali.op: DALI has no operator 'ColorTwist'; did you mean 'color_twist'?",
        ),
        ("op: fn.water", "2:10: dali.op: DALI has no operator 'fn.water'; did you mean 'water'?"),
        (
            "op: zzz",
            "2:10: dali.op: DALI has no operator 'zzz'; see the operators of nvidia.dali.fn",
        ),
        ("op: hsv, huee: 3", "2:19: dali.huee: hsv has no such argument; did you mean 'hue'?"),
        ("op: rotate", "2:3: dali.angle: missing; write 'angle: ...'"),
        ("op: hsv, hue: red", f"2:24: dali.hue is 'red', but should be {NUMBER}"),
        ("op: hsv, hue: yes", f"2:24: dali.hue is true, but should be {NUMBER}"),
        ("op: hsv, hue: [1, 2]", f"2:24: dali.hue is [1, 2], but should be {NUMBER}"),
        ("op: hsv, hue: .inf", f"2:24: dali.hue is inf, but should be {NUMBER}"),
        ("op: hsv, hue: {}", f"2:24: dali.hue is {{}}, but should be {NUMBER}"),
        (
            "op: water, ampl_x: {uniform: [1, 2]}",
            "2:29: dali.ampl_x is {uniform: [1, 2]}, but should be a number: DALI takes one value",
        ),
        (
            "op: hsv, hue: {unifrm: [1, 2]}",
            "2:25: dali.hue.unifrm: there is no such draw; did you mean 'uniform'?",
        ),
        (
            "op: hsv, hue: {uniform: [2, 1]}",
            "2:34: dali.hue.uniform is [2, 1], but should be [1, 2]: the smaller number first",
        ),
        (
            "op: hsv, hue: {uniform: 2}",
            "2:34: dali.hue.uniform is 2, but should be two numbers, [min, max]",
        ),
        (
            "op: hsv, hue: {normal: [0, -1]}",
            "2:33: dali.hue.normal is [0, -1], but should be [mean, std], with std of at least 0",
        ),
        (
            "op: hsv, hue: {choice: []}",
            "2:33: dali.hue.choice is [], but should be a list of values",
        ),
        ("op: hsv, hue: {choice: [a]}", "2:33: dali.hue.choice is ['a'], but should be a list"),
        ("op: hsv, hue: {flip: 2}", "2:31: dali.hue.flip is 2, but should be a probability"),
        (
            "op: flip, horizontal: {uniform: [0, 0.5]}",
            "2:42: dali.horizontal.uniform is [0, 0.5], but should be two whole numbers",
        ),
        (
            "op: flip, horizontal: 0.5",
            "2:32: dali.horizontal is 0.5, but should be a whole number, or",
        ),
        (
            "op: gaussian_blur, sigma: {choice: [[1, 2], 3]}",
            "2:45: dali.sigma.choice is [[1, 2], 3], but should be a list of values of equal",
        ),
        (
            "op: water, interp_type: INTERP_LINAR",
            "2:34: dali.interp_type is 'INTERP_LINAR', but should be 'INTERP_LINEAR'",
        ),
        (
            "op: water, interp_type: 1",
            "2:34: dali.interp_type is 1, but should be one of INTERP_CUBIC,",
        ),
        ("op: cast, dtype: flaot", "2:27: dali.dtype is 'flaot', but should be 'FLOAT'"),
        (
            "op: resize, size: 9, interp_type: {choice: [INTERP_NN]}",
            "2:44: dali.interp_type is {choice: ['INTERP_NN']}, but should be a name, the same",
        ),
        (
            "op: rotate, angle: 3, keep_size: 1",
            "2:43: dali.keep_size is 1, but should be true or false",
        ),
        (
            "op: rotate, angle: 3, output_dtype: 1",
            "2:32: dali.output_dtype: DALI's argument is deprecated: write 'dtype'",
        ),
        ("op: equalize, seed: 3", "2:24: dali.seed: equalize has no such argument"),
        (
            "op: experimental.equalize",
            "2:10: dali.op: experimental.equalize is deprecated: write equalize",
        ),
        (
            "op: decoders.image",
            "2:10: dali.op: decoders.image takes encoded bytes, and not pixels: write the step",
        ),
        ("op: readers.file", "2:10: dali.op: readers.file does not compute one image from one"),
        ("op: optical_flow", "2:10: dali.op: optical_flow does not compute one image from one"),
        ("op: dump_image", "2:10: dali.op: dump_image writes files: leave it out"),
        (
            "op: random_resized_crop, size: 9",
            "2:10: dali.op: random_resized_crop draws random numbers itself, and gpupipe draws all "
            "of them: write the step 'random_resized_crop'",
        ),
        (
            "op: jitter",
            "2:10: dali.op: jitter draws random numbers itself, and gpupipe draws",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told(written: str, mistake: str) -> None:
    (found,) = mistakes("decode", f"dali: {{{written}}}")
    assert found.startswith(mistake), found


def test_all_mistakes_of_a_step_are_told_at_once() -> None:
    found = mistakes("decode", "dali: {op: rotate, agnle: 3, keep_size: 2}")
    assert [mistake.partition(" ")[0] for mistake in found] == ["2:3:", "2:22:", "2:43:"][
        : len(found)
    ]
    assert any("dali.agnle: rotate has no such argument; did you mean 'angle'?" in m for m in found)
    assert any("dali.keep_size is 2" in mistake for mistake in found)
