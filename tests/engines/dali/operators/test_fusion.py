"""Neighbours that become one operation, and those that stay two."""

from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer

SIZE = np.array([[480.0, 640.0], [300.0, 300.0]])
WHOLE = np.full(2, 200.0)
ONE = np.ones(2, np.int32)


def emitted(*calls: tuple[Any, ...], can_cut: bool = True) -> list[str]:
    """The operators of calls of primitives on decoded images of uint8, each as "operator steps"."""
    image = ImageTracer(SIZE, "cpu", can_cut)
    image.spec = Spec.of_image(3)
    for name, *arguments in calls:
        image.step = name
        getattr(image, name)(*arguments)
        dtype = "float32" if name in ("to_dtype", "normalize") else image.spec.dtype
        image.spec = Spec.of_image(3, dtype=dtype)
    return [f"{e.op} {'+'.join(e.steps)}".strip() for e in image.subgraph().emitted]


DECODE = ("decode", "rgb", True)
CROP = ("crop", np.zeros((2, 2)), WHOLE)
PAD = ("crop", np.array([-5.0, -5.0]), np.array([900.0, 900.0]), (0.0,))
RESIZE = ("resize", np.array([240.0, 250.0]), "bilinear", True)
MIRROR = ("flip", ONE)
TURN = ("flip", None, ONE)
FLOATS = ("to_dtype", "float32", True)
NORMALIZE = ("normalize", (0.1,), (0.5,))
FINISH = ("finish", "float32", "CHW")
LAST = "crop_mirror_normalize"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([DECODE, CROP], ["decoders.image_slice decode+crop"]),
        ([DECODE, PAD], ["decoders.image decode", "slice crop"]),
        ([DECODE, CROP, CROP], ["decoders.image_slice decode+crop", "slice crop"]),
        (
            [DECODE, RESIZE, CROP],
            ["decoders.image_slice decode+resize+crop", "resize resize+crop"],
        ),
        ([DECODE, RESIZE, PAD], ["decoders.image decode", "resize resize", "slice crop"]),
        (
            [DECODE, CROP, RESIZE, CROP],
            ["decoders.image_slice decode+crop", "resize resize+crop"],
        ),
        ([RESIZE, CROP, CROP], ["resize resize+crop", "slice crop"]),
        ([MIRROR, TURN, MIRROR], ["flip flip+flip+flip"]),
        ([MIRROR, CROP, MIRROR], ["flip flip", "slice crop", "flip flip"]),
        ([FLOATS, NORMALIZE], [f"{LAST} to_dtype+normalize"]),
        ([NORMALIZE, NORMALIZE], [f"{LAST} normalize"] * 2),
        ([FLOATS, CROP, NORMALIZE], [f"{LAST} to_dtype", "slice crop", f"{LAST} normalize"]),
    ],
)
def test_neighbours_fuse(calls: list[Any], expected: list[str]) -> None:
    assert emitted(*calls) == expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([MIRROR, CROP, MIRROR], ["flip flip", f"{LAST} crop+flip"]),
        ([CROP, MIRROR, FLOATS, NORMALIZE], [f"{LAST} crop+flip+to_dtype+normalize"]),
        ([CROP, TURN], ["slice crop", "flip flip", LAST]),
        ([PAD, MIRROR], ["slice crop", f"{LAST} flip"]),
        ([CROP, CROP], ["slice crop", f"{LAST} crop"]),
        ([FLOATS, MIRROR, NORMALIZE], [f"{LAST} to_dtype", f"{LAST} flip+normalize"]),
        ([DECODE, RESIZE], ["decoders.image decode", "resize resize", LAST]),
    ],
)
def test_the_last_operator_does_what_precedes_it(calls: list[Any], expected: list[str]) -> None:
    assert emitted(*calls, FINISH) == expected


def test_a_decoder_that_cannot_decode_regions_decodes_all() -> None:
    whole = ["decoders.image decode", "slice crop", LAST]
    assert emitted(DECODE, CROP, FINISH, can_cut=False) == whole
    whole = ["decoders.image decode", "resize resize+crop"]
    assert emitted(DECODE, RESIZE, CROP, can_cut=False) == whole


def test_two_flips_of_one_axis_cancel() -> None:
    image = ImageTracer(SIZE, "cpu")
    image.spec = Spec.of_image(3)
    for flags in ([1, 1], [0, 1]):
        image.flip(np.array(flags, np.int32))
    assert [array.tolist() for array in image.subgraph().arrays] == [[1, 0]]
