"""Patterns: which successive operations they match."""

import numpy as np
import pytest

from gpupipe.engines.cpu.ops import CropOp, EraseOp, FlipOp, Op
from gpupipe.engines.cpu.patterns import Maybe, match_pattern
from gpupipe.pipeline.step import Spec

SPEC = Spec.of_image(3)
NO_ROWS = np.zeros((0, 4), np.int64)
CROP, FLIP = CropOp("", SPEC, NO_ROWS, None), FlipOp("", SPEC, NO_ROWS)
ERASE = EraseOp("", SPEC, NO_ROWS, ())
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
