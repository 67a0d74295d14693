"""Traces the primitives that steps call for a batch; see Primitives for each method.

    a step calls    tracer.resize(shape, "bilinear", True)
    ops             [DecodeOp, ResizeOp]      and `size` becomes the new size
    program()       the kernels that run them

If no kernel runs a call, Program.check raises NoLoweringError; then the step runs in torch. What
the program decodes and crops is decided in windows.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.augment.color_branches import ColorBranches
from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.augment.elastic import Elastic
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu import color_stages, ops
from gpupipe.engines.cpu.delivery import DeliverOp
from gpupipe.engines.cpu.joined_buffers import Output
from gpupipe.engines.cpu.ops import find_warp_matrices, in_indices
from gpupipe.engines.cpu.pixels import Array
from gpupipe.engines.cpu.program import BlendOp, Program, Rules, SwitchOp
from gpupipe.engines.cpu.windows import limit_windows, merge_ops
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.primitives import Pair, Seeds
from gpupipe.pipeline.step import NoLoweringError, Spec

Fill = ops.Fill


class Tracer:
    """Records the primitives that steps call for one field of a batch.

    Args:
        size: [height, width] of each sample, (B, 2).
        rules: The rules that choose the kernels.
        spec: Shape, dtype and layout of the samples.
        step: The key of the first step.
        present: The samples to which the calls apply, bool (B,); None for all.

    Attributes:
        spec: Shape, dtype and layout of the samples before the current step.
        step: The key of the current step; "" for the loader itself.
        ops: The operations so far.
        size: The current [height, width] of each sample, (B, 2).
        present: The samples to which the calls apply, bool (B,).
    """

    annotations: Annotations | None = None

    def __init__(
        self,
        size: ArrayLike,
        rules: Rules,
        spec: Spec,
        step: str = "",
        present: NDArray[np.bool_] | None = None,
    ) -> None:
        self.spec, self.step = spec, step
        self.ops: list[ops.Op] = []
        self.size = self._decoded_size = np.asarray(size, np.float64)
        self._count = len(self.size)
        self._rules = rules
        self._cut = 0
        if present is None:
            present = np.empty(self._count, bool)
            present.fill(True)  # np.ones is a function of Python
        self.present = present

    def begin_step(self, step: str, spec: Spec) -> None:
        """Set the step that makes the following calls, and the spec of its input."""
        self.step, self.spec = step, spec

    @property
    def width_height(self) -> NDArray[np.float64]:
        return self.size[..., ::-1]

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        options = DecodeOptions(mode, apply_exif_orientation, dtype)
        self.ops.append(
            ops.DecodeOp(*self._origin, options, None, self._decoded_size.astype(np.int64))
        )

    def crop(self, anchor: ArrayLike, shape: ArrayLike, fill: Fill | None = None) -> None:
        self.ops.append(ops.CropOp(*self._origin, self._whole(anchor, shape), fill))
        self.size = self._pairs(shape)

    def pad(self, before: ArrayLike, after: ArrayLike, mode: str) -> None:
        self.ops.append(
            ops.PadOp(*self._origin, self._whole(before, after), cast(ops.PadMode, mode))
        )
        self.size = self.size + self._pairs(before) + self._pairs(after)

    def resize(self, shape: ArrayLike, interpolation: str, antialias: bool) -> None:
        self.ops.append(ops.ResizeOp(*self._origin, self._whole(shape), interpolation, antialias))
        self.size = self._pairs(shape)

    def flip(self, horizontal: ArrayLike | None = None, vertical: ArrayLike | None = None) -> None:
        flags = np.zeros((self._count, 2), np.uint8)
        for n, flag in enumerate((horizontal, vertical)):
            if flag is not None:
                flags[:, n] = flag
        self.ops.append(ops.FlipOp(*self._origin, flags))

    def transpose(self) -> None:
        self.ops.append(ops.TransposeOp(*self._origin))
        self.size = self.size[:, ::-1]

    def warp(
        self,
        linear: ArrayLike,
        source: ArrayLike,
        output: ArrayLike,
        interpolation: str,
        fill: Fill | None,
        shape: ArrayLike | None = None,
    ) -> None:
        if shape is not None:
            self.size = self._pairs(shape)
        matrices = find_warp_matrices(self._count, linear, source, output)
        where = matrices, self._whole(self.size)
        self.ops.append(ops.WarpOp(*self._origin, *where, interpolation, fill))

    def perspective(self, matrix: ArrayLike, interpolation: str, fill: Fill) -> None:
        where = in_indices(self._each(matrix)), self._whole(self.size)
        self.ops.append(ops.PerspectiveOp(*self._origin, *where, interpolation, fill))

    def erase(
        self, anchor: ArrayLike, shape: ArrayLike, value: Fill, seeds: Seeds | None = None
    ) -> None:
        self.ops.append(ops.EraseOp(*self._origin, self._whole(anchor, shape), tuple(value), seeds))

    def add_noise(self, seeds: Seeds, mean: float, sigma: float, clip: bool) -> None:
        self.ops.append(ops.AddNoiseOp(*self._origin, seeds, mean, sigma, clip))

    def elastic(
        self, seeds: Seeds, alpha: Pair, sigma: Pair, interpolation: str, fill: Fill
    ) -> None:
        how = Elastic(alpha, sigma)
        self.ops.append(ops.ElasticOp(*self._origin, seeds, how, interpolation, fill))

    def color_matrix(self, matrix: ArrayLike) -> None:
        self.ops.append(ops.ColorMatrixOp(*self._origin, self._each(matrix), self.present))

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self.ops.append(ops.ToDtypeOp(*self._origin, dtype, scale))

    def normalize(self, mean: Fill, std: Fill) -> None:
        self.ops.append(ops.NormalizeOp(*self._origin, tuple(mean), tuple(std)))

    def color(self, op: str, *values: ArrayLike) -> None:
        if op not in COLOR_OPS:
            raise NoLoweringError(f"there is no color function '{op}'")
        rows = COLOR_OPS[op].values
        arrays = [np.asarray(v, row.dtype) for v, row in zip(values, rows, strict=True)]
        self.ops.append(ops.ColorOp(*self._origin, op, arrays, self.present))

    def switch(self, index: ArrayLike, branches: "Sequence[Callable[[Tracer], None]]") -> None:
        chosen = np.asarray(index)
        if isinstance(branches, ColorBranches) and color_stages.can_choose(
            branches.names, self._origin[1]
        ):
            self._choose_color(branches, chosen)
            return
        rows = [chosen == n for n in range(len(branches))]
        parts = [self._trace_branch(*pair) for pair in zip(branches, rows, strict=True)]
        match [part.ops for part in parts]:
            case [[], [ops.EraseOp() as erase]]:  # so that it can join the delivery
                windows = np.where(rows[1][:, None], erase.windows, 0)
                origin = erase.step, erase.spec
                self.ops.append(ops.EraseOp(*origin, windows, erase.value, erase.seeds))
                return
            case [[], [ops.CropOp() as crop]]:  # so that it can join other crops
                whole = self._whole(np.zeros(2), self.size)
                windows = np.where(rows[1][:, None], crop.windows, whole)
                self.ops.append(crop.with_windows(windows))
                self.size = windows[:, 2:].astype(np.float64)
                return
        changes = [op for part in parts for op in part.ops]
        if color_stages.can_join(changes):
            self.ops += changes
            return
        programs = [part.program() for part in parts]
        self.ops.append(SwitchOp(*self._origin, programs, chosen.astype(np.int64)))
        size = self.size
        for n, part in enumerate(parts):
            if part.size is not self.size:
                size = np.where(rows[n][:, None], part.size, size)
        self.size = size

    def _choose_color(self, branches: ColorBranches, index: Array) -> None:
        """Record a switch whose changes of colours are one operation, whatever their number."""
        step, spec = self._origin
        chosen = branches.names, branches.values, index, self.present
        colors = ops.ChooseColorOp(step, spec, *chosen)
        if not branches.others:
            self.ops.append(colors)
            return
        others = [self._trace_branch(branches[n], index == n) for n in branches.others]
        branch: NDArray[np.int64] = np.full(len(branches), len(others))
        branch[[*branches.others]] = np.arange(len(others))
        programs = [*(other.program() for other in others), Program([colors], self._rules)]
        self.ops.append(SwitchOp(*self._origin, programs, branch[index]))

    def blend(self, branches: "Sequence[Callable[[Tracer], None]]", weights: ArrayLike) -> None:
        everywhere = np.ones(self._count, bool)
        programs = [self._trace_branch(branch, everywhere).program() for branch in branches]
        self.ops.append(BlendOp(*self._origin, programs, np.asarray(weights, np.float64)))

    def call_torch(
        self,
        function: ops.TorchFunction,
        *values: Array,
        size: ArrayLike | None = None,
    ) -> None:
        self.ops.append(ops.CallTorchOp(*self._origin, function, values))
        if size is not None:
            self.size = self._pairs(size)

    def apply(self, op: str, make: object, *values: Array, size: ArrayLike | None = None) -> None:
        raise NoLoweringError(f"'{op}' is an operator of DALI alone")

    def run_torch(self, entry: Entry, parameters: Mapping[str, Array]) -> None:
        """Record a step that runs in torch."""
        self.ops.append(ops.TorchOp(*self._origin, entry, parameters))
        size = entry.output_spec.size or ()
        if len(size) == 2:  # arrays may have more axes, or fewer
            self.size = self._pairs(size)

    def check(self, entry: Entry) -> None:
        """Record a check of the samples against the output spec of a step."""
        self.ops.append(ops.CheckOp(*self._origin, entry))

    def end_prefix(self) -> None:
        """Mark that the decoded cache keeps the result of the operations so far.

        No kernel runs operations from both sides of the mark.
        """
        self._cut = len(self.ops)

    def fork(self, present: NDArray[np.bool_] | None = None, copies: int = 1) -> "Tracer":
        """Return a tracer with the current sizes and spec of the samples, and no operations.

        Args:
            present: The samples to which the calls apply, bool (B,); None for all.
            copies: How many rows it has for each sample: row n * B + r is copy n of sample r.
        """
        size = self.size if copies == 1 else np.tile(self.size, (copies, 1))
        return Tracer(size, self._rules, self.spec, self.step, present)

    def program(self, output: Output | None = None) -> Program:
        """Return the program of all operations. It decodes only the windows that are needed.

        With an `output`, the program ends with the delivery to it.
        """
        if output is not None:
            self.ops.append(DeliverOp(*self._origin, output, self.size))
        if len(self.ops) < 2:  # as most branches of a switch have
            return Program(list(self.ops), self._rules, self._cut)
        cut = self._cut or len(self.ops)
        prefix = limit_windows(self.ops[:cut], self._decoded_size)
        limited = [*prefix, *merge_ops(self.ops[cut:])]
        return Program(limited, self._rules, len(prefix) if self._cut else 0)

    def _trace_branch(
        self, branch: "Callable[[Tracer], None]", present: NDArray[np.bool_]
    ) -> "Tracer":
        part = self.fork(self.present & present)
        branch(part)
        return part

    @property
    def _origin(self) -> tuple[str, Spec]:
        """The key of the step, and the spec of its samples in the order of axes of kernels."""
        return self.step, self.spec.canonical

    def _each(self, matrix: ArrayLike) -> NDArray[np.float64]:
        """Broadcast one matrix, or one per sample, to (B, rows, columns)."""
        matrices = np.asarray(matrix, np.float64)
        if matrices.ndim == 3 and len(matrices) == self._count:
            return matrices
        return np.broadcast_to(matrices, (self._count, *matrices.shape[-2:]))

    def _pairs(self, pair: ArrayLike) -> NDArray[np.float64]:
        """Broadcast one pair of numbers, or one per sample, to (B, 2)."""
        pairs = np.empty((self._count, 2))  # three times as fast as np.broadcast_to
        pairs[:] = pair
        return pairs

    def _whole(self, *pairs: ArrayLike) -> ops.Rows:
        """Join the pairs of each sample, truncated to integers."""
        rows = np.empty((self._count, 2 * len(pairs)), np.int64)
        for n, pair in enumerate(pairs):
            rows[:, 2 * n : 2 * n + 2] = pair
        return rows
