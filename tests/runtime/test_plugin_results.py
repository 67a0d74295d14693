"""Steps of other packages whose results are not what their spec says."""

from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers.odd_steps import ENGINES, Plugin, failure, installer


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugin:
    return installer(tmp_path, monkeypatch)


TORCH = {
    "channels": ("image[:1]", r"made \(1, 250, 250\) uint8, but its spec says \(3, \?, \?\) uint8"),
    "a dtype": ("image.float()", r"made \(3, 250, 250\) float32, but its spec says"),
    "an axis": ("image[None]", r"made \(1, 3, 250, 250\) uint8, but its spec says"),
    "nothing": ("None", "made a NoneType, but should be a tensor"),
}
"""What a step returns in torch, and what is said."""
DALI = {
    "channels": (
        "fn.color_space_conversion(pixels, image_type=types.RGB, output_type=types.GRAY)",
        r"\(250, 250, 1\) uint8, but",
    ),
    "a dtype": (
        "fn.cast(pixels, dtype=types.FLOAT)",
        r"\(250, 250, 3\) float32, but its spec says \(\?, \?, 3\) uint8",
    ),
    "an axis": (
        "fn.squeeze(fn.slice(pixels, start=[0], end=[1], axes=[2]), axes=[2])",
        r"\(250, 250\) uint8, but",
    ),
}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


@pytest.mark.parametrize("options", ENGINES[1:], ids=str)
@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("more", [[], [FLOATS]], ids=["last", "then floats"])
def test_a_wrong_result_in_torch(
    plugin: Plugin, faces: Path, options: dict[str, Any], kind: str, more: list[Any]
) -> None:
    code, said = TORCH[kind]
    name = plugin(torch=f"    def torch(self, image, p):\n        return {code}")
    assert_said(failure(faces, name, *more, **options), rf"its torch\(\) {said}")


@pytest.mark.parametrize("kind", DALI)
@pytest.mark.parametrize(
    "more", [[], [FLOATS], ["random_horizontal_flip", {"resize": {"size": [50, 50]}}]], ids=len
)
def test_a_wrong_result_in_dali(plugin: Plugin, faces: Path, kind: str, more: list[Any]) -> None:
    """Also where what follows would hide it."""
    code, said = DALI[kind]
    name = plugin(
        lower="    def lower(self, image, p):\n        from nvidia.dali import fn, types\n        "
        f"image.apply('odd', lambda pixels: {code})"
    )
    assert_said(failure(faces, name, *more, engine="dali"), rf"its lower\(\) made {said}")


SIZED = "    def infer_spec(self, given):\n        return check_decoded(given).with_size((100, 90))"


@pytest.mark.parametrize(
    ("options", "layout"),
    [(ENGINES[0], "250, 250, 3"), (ENGINES[1], "3, 250, 250")],
    ids=["dali", "torch"],
)
def test_a_size_that_is_not_the_specs(
    plugin: Plugin, faces: Path, options: dict[str, Any], layout: str
) -> None:
    assert_said(
        failure(faces, plugin(infer_spec=SIZED), **options),
        rf"made \({layout}\) uint8, but its spec says",
    )


def test_parameters_that_are_not_of_the_batch(plugin: Plugin, faces: Path) -> None:
    for made in ("u[:1]", "0.5", "u[:, 0].mean()"):
        name = plugin(sample=f"    def sample(self, u):\n        return {{'strength': {made}}}")
        for options in ENGINES[:2]:
            assert_said(
                failure(faces, name, **options),
                r"its sample\(\) made 'strength' of shape \(.*\) for \d samples",
            )


def test_work_that_dali_cannot_do_on_any_sample(plugin: Plugin, faces: Path) -> None:
    wrong = "fn.crop(pixels, crop=[400, 400], out_of_bounds_policy='error')"
    name = plugin(
        lower="    def lower(self, image, p):\n        from nvidia.dali import fn\n        "
        f"image.apply('odd', lambda pixels: {wrong})"
    )
    said = failure(faces, name, engine="dali", on_error="skip", max_bad=1.0)
    assert "its work in DALI raised RuntimeError: " in str(said)


def test_a_result_that_is_wrong_in_one_batch(plugin: Plugin, faces: Path) -> None:
    """What the sample that is tried first does not show."""
    size = SIZED.replace("(100, 90)", "(250, 250)")
    lower = (
        "    def lower(self, image, p):\n        from nvidia.dali import fn\n        "
        "image.apply('odd', lambda pixels, n: fn.resize(pixels, size=n),"
        " np.full((len(p['strength']), 2), 250.0 - (len(p['strength']) > 1)))"
    )
    said = failure(faces, plugin(infer_spec=size, lower=lower), engine="dali")
    assert_said(
        said, r"in a batch, 'image' is \(3, 249, 249\) uint8, but its spec says \(3, 250, 250\)"
    )


def assert_said(error: gpupipe.StepError, pattern: str) -> None:
    with pytest.raises(gpupipe.StepError, match=pattern):
        raise error
