"""Traces the primitives that steps call for a batch; see Primitives for each method.

    a step calls    tracer.resize(shape, "bilinear", True)
    ops             [DecodeOp, ResizeOp]      and `size` becomes the new size
    program()       the kernels that run them

If no kernel runs a call, Program.check raises NoLoweringError; then the step runs in torch.

A crop, or a warp that enlarges, needs only a part of the image. The extension `gpupipe._jpeg`
decodes that part alone. Its pixels equal those of a decode of the whole image:

    DecodeOp, CropOp    add_windows -> DecodeOp(windows=...), CropOp

The decoded array still has the size of the whole image. Its pixels outside the window are
undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpupipe.augment.color_ops import COLOR_OPS
from gpupipe.augment.elastic import Elastic
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.cpu import ops
from gpupipe.engines.cpu.delivery import DeliverOp, OutputBuffer
from gpupipe.engines.cpu.ops import Array, in_indices
from gpupipe.engines.cpu.program import BlendOp, Program, Rules, SwitchOp
from gpupipe.pipeline.annotations import Annotations
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.geometry import affine_matrix
from gpupipe.pipeline.step import NoLoweringError, Spec
from gpupipe.runtime.installation import find_extension

Fill = ops.Fill
_Corner = NDArray[np.float64]
"""[y, x] of each sample, (B, 2), in pixels."""
_MARGIN = 2
"""Pixels that are added on each side of a computed window, since kernels round coordinates."""
_FAR = 1e9
"""A coordinate in pixels that is outside every image. Computed corners are clipped to it."""
_FILTER_RADIUS = {"nearest": 0.0, "bilinear": 1.0, "bicubic": 2.0}
_jpeg = find_extension("_jpeg")


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
        self.present = np.ones(self._count, bool) if present is None else present

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
        none = np.zeros(self._count, np.int32)
        flags = np.stack([none if f is None else f for f in (horizontal, vertical)], -1)
        self.ops.append(ops.FlipOp(*self._origin, flags.astype(np.int64)))

    def warp(
        self,
        linear: ArrayLike,
        source: ArrayLike,
        output: ArrayLike,
        interpolation: str,
        fill: Fill | None,
        shape: ArrayLike | None = None,
    ) -> None:
        matrix = affine_matrix(np.asarray(linear), np.asarray(source), np.asarray(output))
        if shape is not None:
            self.size = self._pairs(shape)
        where = in_indices(self._each(matrix)), self._whole(self.size)
        self.ops.append(ops.WarpOp(*self._origin, *where, interpolation, fill))

    def perspective(self, matrix: ArrayLike, interpolation: str, fill: Fill) -> None:
        where = in_indices(self._each(matrix)), self._whole(self.size)
        self.ops.append(ops.PerspectiveOp(*self._origin, *where, interpolation, fill))

    def erase(
        self,
        anchor: ArrayLike,
        shape: ArrayLike,
        value: Fill,
        seeds: NDArray[np.int64] | None = None,
    ) -> None:
        self.ops.append(ops.EraseOp(*self._origin, self._whole(anchor, shape), value, seeds))

    def add(self, values: Array, clip: bool) -> None:
        self.ops.append(ops.AddOp(*self._origin, values, clip))

    def remap(
        self,
        displacement: NDArray[np.float32],
        reach: tuple[int, int],
        interpolation: str,
        fill: Fill,
    ) -> None:
        self.ops.append(ops.RemapOp(*self._origin, displacement, interpolation, fill))

    def add_noise(self, seeds: NDArray[np.int64], mean: float, sigma: float, clip: bool) -> None:
        self.ops.append(ops.AddNoiseOp(*self._origin, seeds, mean, sigma, clip))

    def elastic(
        self,
        seeds: NDArray[np.int64],
        alpha: tuple[float, float],
        sigma: tuple[float, float],
        interpolation: str,
        fill: Fill,
    ) -> None:
        how = Elastic(alpha, sigma)
        self.ops.append(ops.ElasticOp(*self._origin, seeds, how, interpolation, fill))

    def color_matrix(self, matrix: ArrayLike) -> None:
        self.ops.append(ops.ColorMatrixOp(*self._origin, self._each(matrix)))

    def to_dtype(self, dtype: str, scale: bool) -> None:
        self.ops.append(ops.ToDtypeOp(*self._origin, dtype, scale))

    def normalize(self, mean: Fill, std: Fill) -> None:
        self.ops.append(ops.NormalizeOp(*self._origin, tuple(mean), tuple(std)))

    def color(self, op: str, *values: ArrayLike) -> None:
        if op not in COLOR_OPS:
            raise NoLoweringError(f"there is no color function '{op}'")
        self.ops.append(ops.ColorOp(*self._origin, op, [np.asarray(v) for v in values]))

    def switch(self, index: ArrayLike, branches: Sequence[Callable[[Tracer], None]]) -> None:
        chosen = np.asarray(index)
        parts = [self._trace_branch(branch, chosen == n) for n, branch in enumerate(branches)]
        match [part.ops for part in parts]:
            case [[], [ops.EraseOp() as erase]]:  # so that it can join the delivery
                windows = np.where((chosen == 1)[:, None], erase.windows, 0)
                self.ops.append(replace(erase, windows=windows))
                return
        programs = [part.program() for part in parts]
        self.ops.append(SwitchOp(*self._origin, programs, chosen.astype(np.int64)))
        size = self.size
        for n, part in enumerate(parts):
            if part.size is not self.size:
                size = np.where((chosen == n)[:, None], part.size, size)
        self.size = size

    def blend(self, branches: Sequence[Callable[[Tracer], None]], weights: ArrayLike) -> None:
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

    def fork(self, present: NDArray[np.bool_] | None = None) -> Tracer:
        """Return a tracer with the current sizes and spec of the samples, and no operations.

        Its calls apply to the samples in `present`, bool (B,); None for all.
        """
        return Tracer(self.size, self._rules, self.spec, self.step, present)

    def program(self, output: OutputBuffer | None = None) -> Program:
        """Return the program of all operations. It decodes only the windows that are needed.

        With an `output`, the program ends with the delivery to it.
        """
        if output is not None:
            self.ops.append(DeliverOp(*self._origin, output, self.size))
        cut = self._cut or len(self.ops)
        with_windows = [*add_windows(self.ops[:cut], self._decoded_size), *self.ops[cut:]]
        return Program(with_windows, self._rules, self._cut)

    def _trace_branch(self, branch: Callable[[Tracer], None], present: NDArray[np.bool_]) -> Tracer:
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
        return np.broadcast_to(matrices, (self._count, *matrices.shape[-2:]))

    def _pairs(self, pair: ArrayLike) -> NDArray[np.float64]:
        """Broadcast one pair of numbers, or one per sample, to (B, 2)."""
        return np.broadcast_to(np.asarray(pair, np.float64), (self._count, 2))

    def _whole(self, *pairs: ArrayLike) -> ops.Rows:
        """Join the pairs of each sample, truncated to integers."""
        rows = np.empty((self._count, 2 * len(pairs)), np.int64)
        for n, pair in enumerate(pairs):
            rows[:, 2 * n : 2 * n + 2] = pair
        return rows


def add_windows(traced: Sequence[ops.Op], size: NDArray[np.float64]) -> list[ops.Op]:
    """Return the operations, so that a DecodeOp decodes only what a crop or warp after it reads.

    Args:
        traced: Successive operations. The output of each goes to the next one alone.
        size: [height, width] of the decoded images, (B, 2).
    """
    if _jpeg is None:
        return list(traced)
    match list(traced[:3]):
        case [ops.DecodeOp() as decode, ops.CropOp() as crop, *_]:
            first, end = _find_edges(crop)
        case [ops.DecodeOp() as decode, ops.ResizeOp() as resize, ops.CropOp() as crop]:
            first, end = _find_resized(size / resize.sizes, resize, crop)
        case [ops.DecodeOp() as decode, ops.WarpOp() as warp, *_]:
            first, end = _find_warped(warp)
        case _:
            return list(traced)
    first, end = np.maximum(first, 0.0), np.minimum(end, size)
    is_inside = (end > first).all(-1, keepdims=True)  # where it is not, decode the whole image
    first, end = np.where(is_inside, first, 0.0), np.where(is_inside, end, size)
    windows = np.concatenate([first, end - first], -1).astype(np.int64)
    return [replace(decode, windows=windows), *traced[1:]]


def _find_edges(crop: ops.CropOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the windows of a crop."""
    windows = crop.windows.astype(np.float64)
    return windows[:, :2], windows[:, :2] + windows[:, 2:]


def _find_resized(
    scale: NDArray[np.float64], resize: ops.ResizeOp, crop: ops.CropOp
) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a resize reads for a crop.

    `crop` cuts the output of `resize`. `scale` is the input size over the output size, (B, 2).
    """
    first, end = _find_edges(crop)
    reach = np.ceil(np.maximum(scale, 1.0) * _FILTER_RADIUS[resize.interpolation]) + _MARGIN
    return np.floor(first * scale) - reach, np.ceil(end * scale) + reach


def _find_warped(warp: ops.WarpOp) -> tuple[_Corner, _Corner]:
    """Return [top, left] and [bottom, right] of the pixels that a warp reads, with a margin."""
    bottom, right = warp.sizes.T - 1.0
    none, one = np.zeros_like(right), np.ones_like(right)
    corners = np.array([[none, right, none, right], [none, none, bottom, bottom], [one] * 4])
    points = np.einsum("bij,jkb->bik", warp.matrices, corners)[:, ::-1]  # (B, 2, 4), y before x
    points = np.clip(points, -_FAR, _FAR)
    end = np.ceil(points.max(-1)) + 1 + _FILTER_RADIUS[warp.interpolation] + _MARGIN
    return np.floor(points.min(-1)) - _MARGIN, end
