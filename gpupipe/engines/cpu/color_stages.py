"""The kernel of the extension `gpupipe._kernels` that changes colours: all changes in few passes.

Successive operations on colours become one stage. An operation may change some samples only, and
may run another function on each. So a color_jitter inside a random_apply, whose four ColorBranches
are all four adjustments, is four operations:

    functions    (number, min, max, is_whole) of each; one alone, if it is the same for all samples
    index        (B,), the function of each sample
    values       (B,) of each function, or what the one function takes
    rows         (B,), the samples to change

The extension reads these arrays as the steps made them: see native/color_stage.cpp. It computes
what torchvision does with uint8 and float32.
"""

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA, SCALE_TO_LEVELS, check_blur
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import STAGE_DTYPES, stage_kernel
from gpupipe.engines.cpu.patterns import Match, Series
from gpupipe.engines.cpu.pixels import Array, Pixels, as_array
from gpupipe.engines.cpu.program import Content, Kernel, Rule, Stage
from gpupipe.engines.last_steps import VALUES
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension

_TABLE = 1
COLORS = {
    "adjust_brightness": 2,
    "adjust_contrast": 3,
    "adjust_saturation": 4,
    "adjust_hue": 5,
    "posterize": 6,
    "solarize": 7,
    "solarize_add": 8,
    "invert": 9,
    "autocontrast": 10,
    "equalize": 11,
    "adjust_sharpness": 12,
    "gaussian_blur": 13,
    "permute_channels": 14,
    "scale_and_shift": 18,
    "scale_and_shift_by_mean": 19,
}
"""The functions of COLOR_OPS that the extension knows: the numbers of Color in native/color.h."""
OF_FLOATS = {
    **{name: n for name, n in COLORS.items() if "float32" in COLOR_OPS[name].dtypes},
    "adjust_gamma": 20,
}
"""Those that it knows for float32. Of uint8, a gamma is a table."""
_OF_LEVELS, _OF_FLOATS = {"", *COLORS}, {"", *OF_FLOATS}
GRAY, TO_GRAY, TO_RGB = 15, 16, 17
_MAX_VALUE = 255
_extension = find_extension()

_Function = tuple[int, float, float, bool]
"""The number of a function in `COLORS`, the range of its value, and whether the value is whole."""
_Change = tuple[tuple[_Function, ...], Array | None, tuple[Array, ...], NDArray[np.bool_] | None]
"""The functions, the index or None, the values, and the rows or None."""


@lru_cache(maxsize=64)
def _list_functions(names: tuple[str, ...], dtype: str) -> tuple[_Function, ...]:
    """Return functions of one number or none, which the extension knows for a dtype; 0 for ""."""
    known = OF_FLOATS if dtype == "float32" else COLORS
    functions = []
    for name in names:
        low, high, kind = 0.0, 0.0, "f"
        for value in COLOR_OPS[name].values[:1] if name else ():
            low, high, kind = value.min, value.max, np.dtype(value.dtype).kind
        functions.append((known.get(name, 0), low, high, kind == "i"))
    return tuple(functions)


def _make_change(op: ops.Op, tables: list[NDArray[np.uint8]]) -> _Change:
    """Return the change of an operation; append the tables that it names to `tables`."""
    values: tuple[Array, ...] = ()
    match op:
        case ops.ChooseColorOp(names=names):
            return _list_functions(names, op.spec.dtype), op.index, tuple(op.values), op.rows
        case ops.ColorMatrixOp():
            color = _find_matrix(op)
            assert color is not None
        case _:
            assert isinstance(op, ops.ColorOp)
            color, values = _find_numbers(op).get(op.name, _TABLE), tuple(op.values)
            if color == _TABLE:
                rows = np.ones(len(values[0]), bool) if op.rows is None else op.rows
                numbers = sum(map(len, tables)) - 1 + np.cumsum(rows)
                values = (np.where(rows, numbers, 0),)
                tables.append(make_tables(op, rows))
    return ((color, 0.0, 0.0, False),), None, values, op.rows


def _find_numbers(op: ops.Op) -> dict[str, int]:
    """Return the functions that the extension knows for the dtype of an operation."""
    return OF_FLOATS if op.spec.dtype == "float32" else COLORS


def make_tables(op: ops.ColorOp, rows: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return the table of a pointwise function for each of n samples of a batch, (n, 256).

    Args:
        op: The function, which needs torchvision unless `has_formula`.
        rows: Whether it applies to each sample, (B,).
    """
    formula, chosen = COLOR_OPS[op.name].formula, np.flatnonzero(rows)
    if formula is None or not has_formula(op):
        tables = [color_ops.apply(op.name, VALUES, op.values_of(int(row))) for row in chosen]
        return torch.stack(tables).reshape(-1, len(VALUES[0, 0])).numpy() if tables else _NO_TABLES
    values = [torch.from_numpy(v[rows]).movedim(0, -1).unsqueeze(-1) for v in op.values]
    values = [v.to(torch.float32) if v.is_floating_point() else v for v in values]
    numbers = formula(_SCALED, *values).clamp(0.0, 1.0) * SCALE_TO_LEVELS
    table: NDArray[np.uint8] = numbers.to(torch.uint8).expand(len(chosen), -1).numpy()
    return table


_SCALED = VALUES[0].to(torch.float32) * (1 / _MAX_VALUE)
_NO_TABLES = np.zeros((0, _MAX_VALUE + 1), np.uint8)


def _find_matrix(op: ops.ColorMatrixOp) -> int | None:
    """Return the number of the change that a matrix makes; None if the extension has none."""
    if op.matrices.strides[0] and len(op.matrices) > 1:  # not one for all samples
        return None
    matrix = op.matrices[0]
    return _MATRICES.get((len(matrix), matrix.tobytes()))


_MATRICES = {
    (len(matrix), np.array(matrix).tobytes()): color
    for color, matrix in ((GRAY, [LUMA] * 3), (TO_GRAY, [LUMA]), (TO_RGB, [[1.0]] * 3))
}


def _accepts(op: ops.Op) -> bool:
    """Return whether the extension makes a change."""
    if op.spec.dtype not in STAGE_DTYPES or op.spec.channels not in (1, 3):
        return False
    match op:
        case ops.ChooseColorOp():
            return True
        case ops.ColorOp(name=name):
            has_table = op.spec.dtype == "uint8" and COLOR_OPS[name].is_pointwise
            return name in _find_numbers(op) or has_table
        case ops.ColorMatrixOp():
            return _find_matrix(op) is not None
    return False


def can_join(changes: Iterable[ops.Op]) -> bool:
    """Return whether the kernel makes changes of some samples, which keep the channels."""
    return _extension is not None and all(
        _accepts(op) and not (isinstance(op, ops.ColorMatrixOp) and _find_matrix(op) != GRAY)
        for op in changes
    )


def can_choose(names: Iterable[str], spec: Spec) -> bool:
    """Return whether the kernel takes a ChooseColorOp of these functions on images of `spec`."""
    if _extension is None or spec.dtype not in STAGE_DTYPES or spec.channels not in (1, 3):
        return False
    return _OF_FLOATS.issuperset(names) if spec.dtype == "float32" else _OF_LEVELS.issuperset(names)


def _create_stage(changes: Iterable[ops.Op]) -> Stage:
    """Return the stage that makes changes one after the other, for all samples of their batch."""
    tables = [_NO_TABLES]
    made = tuple(_make_change(op, tables) for op in changes)
    joined = np.concatenate(tables) if len(tables) > 1 else _NO_TABLES
    return Stage(_extension.color_stage(made, joined))


def _check_blurs(changes: Iterable[ops.Op], pixels: Pixels, row: int) -> None:
    """Raise SampleIncompatibleError if a sample is too small for one of its blurs."""
    for op in changes:
        match op:
            case ops.ColorOp(name="gaussian_blur", values=[kernel_size, _], rows=rows):
                if rows is None or rows[row]:
                    check_blur(kernel_size[row], as_array(pixels).shape[:2])


def _bind(match: Match) -> Kernel:
    kernel = stage_kernel("kernels.color", partial(_create_stage, match.ops))

    def run(content: Content, row: int) -> Pixels:
        _check_blurs(match.ops, cast(Pixels, content), row)
        return kernel.run(content, row)

    needs_torchvision = any(map(_needs_torchvision, match.ops))
    return Kernel(kernel.name, run, kernel.stage, needs_torchvision)


def _needs_torchvision(op: ops.Op) -> bool:
    return isinstance(op, ops.ColorOp) and op.name not in _find_numbers(op) and not has_formula(op)


def has_formula(op: ops.ColorOp) -> bool:
    """Return whether a formula is all that there is of a function."""
    function = COLOR_OPS[op.name]
    return function.reference is None and function.formula is not None


_KINDS = ops.ColorOp, ops.ChooseColorOp, ops.ColorMatrixOp


def create_rules() -> list[Rule]:
    """Return the rule of the kernel; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    return [Rule((Series(_KINDS, _accepts),), _bind)]
