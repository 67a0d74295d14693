"""Records the primitives that steps call for a batch; see Primitives for each method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu.decoded_windows import add_windows
from gpupipe.engines.cpu.pixels import in_indices
from gpupipe.engines.cpu.preparation import find_preparation
from gpupipe.engines.cpu.program import Call, Program, Table
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import NoLowering, Spec

Fill = tuple[float, ...]


class Recorder:
    """The samples of one field of a batch.

    Args:
        size: [height, width] of each sample, (B, 2).
        table: The kernels that run the calls.
        calls: The calls so far.
    """

    def __init__(self, size: Any, table: Table) -> None:
        self.spec, self.step = Spec(), ""
        self.calls: list[Call] = []
        self._size = self._decoded_size = np.asarray(size, np.float64)
        self._count = len(self._size)
        self._table = table
        self._cut = 0
        self.present: NDArray[np.bool_] = np.ones(self._count, bool)

    @property
    def size(self) -> Any:
        return self._size

    @property
    def width_height(self) -> Any:
        return self._size[..., ::-1]

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        self._record("decode", DecodeOptions(mode, apply_exif_orientation, dtype))

    def crop(self, anchor: Any, shape: Any, fill: Fill | None = None) -> None:
        window = np.concatenate([self._pairs(anchor), self._pairs(shape)], -1)
        self._record("crop", fill, window.astype(np.int64).tolist())
        self._size = self._pairs(shape)

    def pad(self, before: Any, after: Any, mode: str) -> None:
        sides = np.concatenate([self._pairs(before), self._pairs(after)], -1)
        self._record("pad", mode, sides.astype(np.int64).tolist())
        self._size = self._size + before + after

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        sides = self._pairs(shape)
        self._record("resize", (interpolation, antialias), sides.astype(np.int64).tolist())
        self._size = sides

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        none = np.zeros(self._count, np.int32)
        flags = np.stack([none if f is None else f for f in (horizontal, vertical)], -1)
        self._record("flip", (), flags.tolist())

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: Fill | None,
        shape: Any = None,
    ) -> None:
        matrix = affine_matrix(np.asarray(linear), np.asarray(source), np.asarray(output))
        sides = self._size if shape is None else self._pairs(shape)
        self._resample("warp", matrix, sides, (interpolation, fill))

    def perspective(self, matrix: Any, interpolation: str, fill: Fill) -> None:
        self._resample("perspective", np.asarray(matrix), self._size, (interpolation, fill))

    def _resample(self, primitive: str, matrix: Any, sides: Any, options: Any) -> None:
        matrices = in_indices(np.broadcast_to(matrix, (self._count, *matrix.shape[-2:])))
        self._size = self._pairs(sides)
        sizes = self._size.astype(np.int64).tolist()
        self._record(primitive, options, list(zip(matrices, sizes, strict=True)))

    def erase(self, anchor: Any, shape: Any, value: Fill) -> None:
        window = np.concatenate([self._pairs(anchor), self._pairs(shape)], -1)
        self._record("erase", value, window.astype(np.int64).tolist())

    def add(self, values: NDArray[Any], clip: bool) -> None:
        self._record("add", clip, list(values))

    def remap(
        self, displacement: NDArray[np.float32], reach: Any, interpolation: str, fill: Fill
    ) -> None:
        self._record("remap", (interpolation, fill), list(displacement))

    def color_matrix(self, matrix: Any) -> None:
        rows = np.asarray(matrix, np.float64)
        self._record(
            "color_matrix", (), list(np.broadcast_to(rows, (self._count, *rows.shape[-2:])))
        )

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self._record("to_dtype", (dtype, scale))

    def normalize(self, mean: Fill, std: Fill) -> None:
        self._record("normalize", (tuple(mean), tuple(std)))

    def color(self, op: str, *values: Any) -> None:
        if op not in COLOR_OPS:
            raise NoLowering(f"there is no color function '{op}'")
        rows = zip(*(np.asarray(v).tolist() for v in values), strict=True)
        self._record("color", op, list(rows) if values else [()] * self._count)

    def switch(self, index: Any, branches: Sequence[Callable[[Any], None]]) -> None:
        chosen = np.asarray(index)
        parts = [self._run_branch(branch, chosen == n) for n, branch in enumerate(branches)]
        if [[call.primitive for call in part.calls] for part in parts] == [[], ["erase"]]:
            self._erase_some(parts[1].calls[0], chosen == 1)
            return
        self._record("switch", (), chosen.tolist(), parts)
        size = self._size
        for n, part in enumerate(parts):
            size = np.where((chosen == n)[:, None], part.size, size)
        self._size = size

    def _erase_some(self, erase: Call, is_erased: NDArray[np.bool_]) -> None:
        """Record an `erase` of some samples without a switch, so that it can join the delivery."""
        nothing = [0] * 4
        pairs = zip(erase.rows, is_erased.tolist(), strict=True)
        rows = [window if is_one else nothing for window, is_one in pairs]
        self.calls.append(replace(erase, rows=rows))

    def blend(self, branches: Sequence[Callable[[Any], None]], weights: Any) -> None:
        everywhere = np.ones(self._count, bool)
        parts = [self._run_branch(branch, everywhere) for branch in branches]
        self._record("blend", (), np.asarray(weights).tolist(), parts)

    def call_torch(self, function: Callable[[Any], Any]) -> None:
        self._record("call_torch", function)

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        raise NoLowering(f"'{op}' is an operator of DALI alone")

    def run_torch(self, entry: Entry, parameters: dict[str, NDArray[Any]]) -> None:
        """Record a step that runs in torch."""
        self._record("torch", (entry, parameters))
        size = entry.output_spec.size or ()
        if len(size) == 2:  # arrays may have more axes, or fewer
            self._size = self._pairs(size)

    def check(self, entry: Entry) -> None:
        """Record a check of the samples against the output spec of a step."""
        self._record("check", entry)

    def end_beginning(self) -> None:
        """End the beginning, whose result the decoded cache keeps: no group crosses this point."""
        self._cut = len(self.calls)

    def fork(self) -> Recorder:
        """Return a recorder that begins with the samples as they are now, without calls."""
        fork = Recorder(self._size, self._table)
        fork.spec, fork.step = self.spec, self.step
        return fork

    def deliver(self, options: Any) -> Program:
        """Return the program of all calls, with the delivery as the last."""
        self._record("deliver", options)
        return self.program()

    def program(self) -> Program:
        """Return the program of all calls, which decodes no more of an image than it needs."""
        first, rest = self.calls[: self._cut or None], self.calls[self._cut or len(self.calls) :]
        calls = [*add_windows(first, self._decoded_size), *rest]
        program = Program(calls, self._table, self._cut)
        program.preparation = find_preparation(program.rest)
        return program

    def _run_branch(self, branch: Callable[[Any], None], present: NDArray[np.bool_]) -> Recorder:
        part = self.fork()
        part.present = self.present & present
        branch(part)
        return part

    def _record(
        self,
        primitive: str,
        options: Any,
        rows: Sequence[Any] = (),
        parts: Sequence[Recorder] = (),
    ) -> None:
        programs = tuple(part.program() for part in parts)
        call = Call(primitive, self.step, self.spec, options, rows, programs)
        if not any(kernel.takes([call]) for kernel in self._table.get((primitive,), ())):
            raise NoLowering(f"the CPU engine has no kernel for this use of '{primitive}'")
        self.calls.append(call)

    def _pairs(self, pair: Any) -> NDArray[np.float64]:
        """Return one pair of numbers per sample, (B, 2)."""
        return np.broadcast_to(np.asarray(pair, np.float64), (self._count, 2))
