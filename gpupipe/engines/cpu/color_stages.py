"""The kernel of the extension `gpupipe._kernels` that changes colours: all changes in few passes.

Successive operations on colours become one stage, whatever their order is in each sample. So the
four switches of a color_jitter, whose ColorBranches are all four adjustments, are four columns:

    colors    (B, n)      the change of each sample, one after the other; 0 for none
    values    (B, n, 4)   the values of each change
    tables    (m, 256)    for functions of one value that the extension does not know

See native/color.h for what the extension does with them. It computes what torchvision does with
uint8 and float32.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment import color_ops
from gpupipe.augment.color_ops import COLOR_OPS, LUMA, SCALE_TO_LEVELS, check_blur
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.compiled_kernels import STAGE_DTYPES, stage_kernel
from gpupipe.engines.cpu.pixels import Pixels, as_array
from gpupipe.engines.cpu.program import Content, Kernel, Match, Rule, Series, Stage, SwitchOp
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
_NUM_VALUES = 4
_MAX_VALUE = 255
_extension = find_extension()

_Rows = NDArray[np.bool_]
"""Whether a change applies to each sample, (B,)."""


@dataclass
class _Columns:
    """The changes of all samples of a batch, one column after the other.

    Attributes:
        colors: The changes, int64 (B, n).
        values: Their values, float64 (B, n, 4).
        tables: The tables that changes name: arrays of uint8, (n, 256).
    """

    colors: NDArray[np.int64]
    values: NDArray[np.float64]
    tables: list[NDArray[np.uint8]] = field(default_factory=list)

    def add_all(self, changes: Iterable[ops.Op], rows: _Rows, position: int = 0) -> int:
        """Add operations for the samples in `rows`, the first of them to the column `position`.

        Returns:
            The position after the last of them.
        """
        for op in changes:
            if isinstance(op, SwitchOp):
                ends = [
                    self.add_all(branch.ops, rows & (op.index == n), position)
                    for n, branch in enumerate(op.branches)
                    if branch.ops
                ]
                position = max(ends, default=position)
                continue
            if isinstance(op, ops.ChooseColorOp):
                self._add_chosen(op, rows, position)
            else:
                self._add(op, rows, position)
            position += 1
        return position

    def _add_chosen(self, op: ops.ChooseColorOp, rows: _Rows, position: int) -> None:
        numbers = _list_numbers(op.names, op.spec.dtype)[op.index]
        np.copyto(self.colors[:, position], numbers, where=rows)
        np.copyto(self.values[:, position, 0], op.values, where=rows)

    def _add(self, op: ops.Op, rows: _Rows, position: int) -> None:
        values = self.values[:, position]
        if isinstance(op, ops.ColorMatrixOp):
            color = _find_matrix(op)
            assert color is not None
        else:
            assert isinstance(op, ops.ColorOp)
            color = _find_numbers(op).get(op.name, _TABLE)
            if color == _TABLE:
                values[rows, 0] = sum(map(len, self.tables)) + np.arange(np.count_nonzero(rows))
                self.tables.append(make_tables(op, rows))
            elif op.values:
                first = 0
                for given in op.values:
                    columns = given.reshape(len(rows), -1)
                    end = first + columns.shape[1]
                    np.copyto(values[:, first:end], columns, where=rows[:, None])
                    first = end
        np.copyto(self.colors[:, position], color, where=rows)


@lru_cache(maxsize=64)
def _list_numbers(names: tuple[str, ...], dtype: str) -> NDArray[np.int64]:
    """Return the numbers of functions that the extension knows for a dtype; 0 for ""."""
    known = OF_FLOATS if dtype == "float32" else COLORS
    return np.array([known.get(name, 0) for name in names])


def _count_columns(changes: Iterable[ops.Op]) -> int:
    """Return how many changes a sample may have at most."""
    count = 0
    for op in changes:
        branches = op.branches if isinstance(op, SwitchOp) else None
        count += 1 if branches is None else max([0, *[_count_columns(b.ops) for b in branches]])
    return count


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
    pixels = VALUES[0].to(torch.float32) * (1 / _MAX_VALUE)
    numbers = formula(pixels, *values).clamp(0.0, 1.0) * SCALE_TO_LEVELS
    table: NDArray[np.uint8] = numbers.to(torch.uint8).expand(len(chosen), -1).numpy()
    return table


_NO_TABLES = np.zeros((0, _MAX_VALUE + 1), np.uint8)


def _find_matrix(op: ops.ColorMatrixOp) -> int | None:
    """Return the number of the change that a matrix makes; None if the extension has none."""
    own = op.matrices if op.matrices.strides[0] else op.matrices[:1]  # one for all samples
    for color, matrix in _MATRICES.items():
        if matrix.shape == own.shape[1:] and (own == matrix).all():
            return color
    return None


_MATRICES = {
    GRAY: np.array([LUMA] * 3),
    TO_GRAY: np.array([LUMA]),
    TO_RGB: np.ones((3, 1)),
}


def _accepts(op: ops.Op, keeps_channels: bool = False) -> bool:
    """Return whether the extension makes a change.

    Args:
        op: The change.
        keeps_channels: Whether the number of channels must stay as it is.
    """
    if op.spec.dtype not in STAGE_DTYPES or op.spec.channels not in (1, 3):
        return False
    match op:
        case ops.ChooseColorOp():
            return True
        case ops.ColorOp(name=name):
            has_table = op.spec.dtype == "uint8" and COLOR_OPS[name].is_pointwise
            return name in _find_numbers(op) or has_table
        case ops.ColorMatrixOp():
            color = _find_matrix(op)
            return color == GRAY or (color is not None and not keeps_channels)
        case SwitchOp(branches=branches):
            return all(_accepts(part, True) for branch in branches for part in branch.ops)
    return False


def can_choose(names: Iterable[str], spec: Spec) -> bool:
    """Return whether the kernel takes a ChooseColorOp of these functions on images of `spec`."""
    if _extension is None or spec.dtype not in STAGE_DTYPES or spec.channels not in (1, 3):
        return False
    return _OF_FLOATS.issuperset(names) if spec.dtype == "float32" else _OF_LEVELS.issuperset(names)


def _create_stage(changes: Sequence[ops.Op]) -> Stage:
    """Return the stage that makes changes one after the other, for all samples of their batch."""
    count = _count_rows(changes)
    n = max(_count_columns(changes), 1)
    columns = _Columns(np.zeros((count, n), np.int64), np.zeros((count, n, _NUM_VALUES)))
    columns.add_all(changes, np.ones(count, bool))
    tables = np.concatenate([*columns.tables, _NO_TABLES]) if columns.tables else _NO_TABLES
    return Stage(_extension.color_stage(columns.colors, columns.values, tables))


def _count_rows(changes: Iterable[ops.Op]) -> int:
    """Return the number of samples; 1 if no parameter differs between samples."""
    for op in changes:
        match op:
            case ops.ColorMatrixOp(matrices=rows):
                return len(rows)
            case SwitchOp(index=rows) | ops.ChooseColorOp(index=rows):
                return len(rows)
            case ops.ColorOp(values=[rows, *_]):
                return len(rows)
    return 1


def _check_blurs(changes: Iterable[ops.Op], pixels: Pixels, row: int) -> None:
    """Raise SampleIncompatibleError if a sample is too small for one of its blurs."""
    for op in changes:
        if isinstance(op, SwitchOp):
            _check_blurs(op.branches[op.index[row]].ops, pixels, row)
        elif isinstance(op, ops.ColorOp) and op.name == "gaussian_blur":
            check_blur(op.values[0][row], as_array(pixels).shape[:2])


def _bind(match: Match) -> Kernel:
    kernel = stage_kernel("kernels.color", partial(_create_stage, match.ops))

    def run(content: Content, row: int) -> Pixels:
        _check_blurs(match.ops, cast(Pixels, content), row)
        return kernel.run(content, row)

    needs_torchvision = any(map(_needs_torchvision, match.ops))
    return Kernel(kernel.name, run, kernel.stage, needs_torchvision)


def _needs_torchvision(op: ops.Op) -> bool:
    if isinstance(op, SwitchOp):
        return any(_needs_torchvision(part) for branch in op.branches for part in branch.ops)
    return isinstance(op, ops.ColorOp) and op.name not in _find_numbers(op) and not has_formula(op)


def has_formula(op: ops.ColorOp) -> bool:
    """Return whether a formula is all that there is of a function."""
    function = COLOR_OPS[op.name]
    return function.reference is None and function.formula is not None


_KINDS = ops.ColorOp, ops.ChooseColorOp, ops.ColorMatrixOp, SwitchOp


def create_rules() -> list[Rule]:
    """Return the rule of the kernel; [] if the extension is not built, or is off."""
    if _extension is None:
        return []
    return [Rule((Series(_KINDS, _accepts),), _bind)]
