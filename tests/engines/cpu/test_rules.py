"""Patterns of operations, and the rules that bind kernels to them."""

from __future__ import annotations

import numpy as np
import pytest

from gpupipe.engines.cpu.ops import CropOp, EraseOp, FlipOp, Op
from gpupipe.engines.cpu.pixels import Pixels, as_array
from gpupipe.engines.cpu.rules import Maybe, Rules, match_pattern, single
from gpupipe.pipeline.step import Spec

SPEC = Spec(encoded=False, channels=3, dtype="uint8")
CROP, ERASE = CropOp("", SPEC, [], None), EraseOp("", SPEC, [], ())
FLIP = FlipOp("", SPEC, [[0, 0], [1, 0]])
PATTERN = (Maybe(CropOp), Maybe(FlipOp), EraseOp)


@pytest.mark.parametrize(
    "ops", [[ERASE], [CROP, ERASE], [FLIP, ERASE], [CROP, FLIP, ERASE]], ids=len
)
def test_a_pattern_names_operations_that_may_be_missing(ops: list[Op]) -> None:
    match = match_pattern(PATTERN, [*ops, CROP])
    assert match is not None
    assert list(match.ops) == ops
    assert match[EraseOp] is ERASE
    assert match.get(CropOp) is (CROP if CROP in ops else None)
    assert match.get(FlipOp) is (FLIP if FLIP in ops else None)


@pytest.mark.parametrize("ops", [[CROP], [FLIP, CROP, ERASE], [CROP, CROP, ERASE], []], ids=len)
def test_other_operations_do_not_match(ops: list[Op]) -> None:
    assert match_pattern(PATTERN, ops) is None


def flip(op: FlipOp, pixels: Pixels, row: int) -> Pixels:
    return as_array(pixels)[:, :: 1 - 2 * op.flags[row][0]]


def test_a_kernel_is_bound_to_its_operation() -> None:
    """The first of two that can run it."""
    rules = Rules(
        [
            single(FlipOp, "few", flip, lambda op: len(op.flags) < 2),
            single(FlipOp, "many", flip, needs_torchvision=True),
        ]
    )
    found = rules.find([FLIP, CROP])
    assert found is not None
    kernel, ops = found
    assert (kernel.name, kernel.needs_torchvision, list(ops)) == ("many", True, [FLIP])
    image = np.arange(12).reshape(2, 2, 3)
    assert kernel.run(image, 0) is not image
    assert np.array_equal(as_array(kernel.run(image, 0)), image)
    assert np.array_equal(as_array(kernel.run(image, 1)), image[:, ::-1])
    assert rules.find([CROP]) is None
