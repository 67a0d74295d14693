"""An image that defers work, so that neighbouring steps become one DALI operator.

What can be deferred, in the order in which it will be carried out:

    decode -> window -> resize (and a region of it) -> flip -> floats (scale, mean, std, dtype)

A call that does not fit behind what is deferred already carries that out first. So fusing is no rewriting of a finished graph: it
is what remains when nothing is done before it must be. `emitted` tells which operator does the work of which steps.

Steps work on such an image twice: once with a DataNode, which builds the graph, and then for every batch without one, which only finds
the values that the graph is fed. Sizes and windows are float64 NumPy in both, for a whole batch, (B, 2); or (2,), the same for all samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.arithmetic import affine_matrix
from gpupipe.engines import dali_ops as ops
from gpupipe.engines.deferred import Decode, Emitted, Flips, Floats, Resize, Window
from gpupipe.engines.resampling import needed_window, source_region
from gpupipe.step import FLOATS, Spec

Feed = Callable[[NDArray[Any]], Any]
"""Takes what one argument of an operator is for each sample of a batch, an array (B, ...), and returns the DataNode for it."""


class Unfit(RuntimeError):
    """A step cannot be done to a sample."""


class FusingImage:
    """The image that a step's `dali` works on: see step.DaliImage for what each method means."""

    def __init__(
        self, data: Any, size: NDArray[np.float64], feed: Feed, device: Literal["cpu", "gpu"], region_decode: bool, decoder_options: dict[str, Any]
    ) -> None:  # fmt: skip
        """data: DataNode of encoded bytes, or None where only values are wanted. size: (B, 2), of the images when decoded.
        region_decode: whether the decoder may be asked for a part of an image."""
        self.device: Literal["cpu", "gpu"] = device
        self.spec = Spec()
        self.step = ""
        self.exif = False
        self.emitted: list[Emitted] = []
        self._node = data
        self._size: Any = size
        self._feed = feed
        self._region_decode = region_decode
        self._decoder_options = decoder_options
        self._decode: Decode | None = None
        self._window: Window | None = None
        self._resize: Resize | None = None
        self._flips: Flips | None = None
        self._floats: Floats | None = None

    # --- asked by steps

    @property
    def size(self) -> Any:
        return self._size

    @property
    def width_height(self) -> Any:
        return self._size[..., ::-1]

    def apply(self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None) -> None:
        self._carry_out()
        nodes = [self._feed(_single(v)) for v in values]
        self._emit(op, [self.step], lambda pixels: make(pixels, *nodes))
        if size is not None:
            self._size = np.asarray(size, np.float64)

    def decode(self, mode: str, apply_exif_orientation: bool) -> None:
        self.exif = apply_exif_orientation
        self._decode = Decode(mode, apply_exif_orientation, self.step)

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        window = Window(np.asarray(anchor, np.float64), np.asarray(shape, np.float64), fill, self.step, self._size)
        if fill is None:
            self._check(window)
        if self._resize and not self._resize.region and fill is None and not (self._flips or self._floats):
            self._resize.region = window
        else:
            if self._window or self._resize or self._flips or self._floats:
                self._carry_out()
            self._window = window
        self._size = window.shape

    def pad(self, before: Any, after: Any, mode: str) -> None:
        self._carry_out()
        size, offset = self._size + before + after, np.asarray(before, np.float64)[..., ::-1]
        matrix = affine_matrix(np.broadcast_to(np.eye(2), (*offset.shape, 2)), np.zeros(2), offset)
        matrix, shape = self._matrix(matrix), self._argument(size, 1, np.float32)
        self._emit("experimental.warp_perspective", [self.step], lambda pixels: ops.warp_border(pixels, matrix, shape, mode))
        self._size = size

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        if self._resize or self._flips or self._floats:
            self._carry_out()
        self._resize = Resize(self._size, np.asarray(shape, np.float64), interpolation, antialias, self.step)
        self._size = self._resize.shape

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        if self._floats:
            self._carry_out()
        flips = self._flips or Flips()
        self._flips = Flips(_both(flips.horizontal, horizontal), _both(flips.vertical, vertical), [*flips.steps, self.step])

    def warp(self, linear: Any, source: Any, output: Any, interpolation: str, fill: ops.Fill, shape: Any = None) -> None:
        self._carry_out()
        fill = fill * (self.spec.channels or 1) if len(fill) == 1 else fill
        matrix = affine_matrix(linear, source, output)
        size = None if shape is None else self._argument(shape, 1, np.float32)
        if self.device == "gpu" and len(set(fill)) == 1:
            flat = self._argument(matrix, 2, np.float32)
            self._emit("warp_affine", [self.step], lambda pixels: ops.warp_affine(pixels, flat, size, interpolation, fill[0]))
        else:
            square = self._matrix(matrix)
            self._emit("experimental.warp_perspective", [self.step], lambda pixels: ops.warp_perspective(pixels, square, size, interpolation, fill))
        self._size = self._size if shape is None else np.asarray(shape, np.float64)

    def to_dtype(self, dtype: str, scale: bool) -> None:
        if dtype == "uint8" and self.spec.dtype in FLOATS:
            self._carry_out()
            self._emit("cast", [self.step], lambda pixels: ops.to_uint8(pixels, scale))
            return
        floats = self._floats or Floats(dtype, 255.0 if scale else 1.0)
        self._floats = Floats(dtype, floats.divide, floats.mean, floats.std, [*floats.steps, self.step])

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        if self._floats and self._floats.mean is not None:
            self._carry_out()
        floats = self._floats or Floats(self.spec.dtype)
        self._floats = Floats(floats.dtype, floats.divide, mean, std, [*floats.steps, self.step])

    # --- asked by the engine

    def finish(self, dtype: str, layout: ops.Layout) -> Any:
        """The image as a DataNode of `dtype` ("uint8", "float16", "float32") and `layout`, everything carried out."""
        window = self._take_last_window()
        mirror = self._take_last_mirror()
        floats, self._floats = self._floats, None
        self._carry_out()
        if dtype == "uint8" and not (window or mirror or floats):
            if layout == "CHW":
                self._emit("transpose", [], ops.planes)
            return self._node
        self._normalize(floats or Floats(dtype), dtype, layout, window, mirror)
        return self._node

    # --- carrying out

    def _check(self, window: Window) -> None:
        """Raises Unfit where a window is not inside the image."""
        if self._node is not None:
            return
        outside = ((window.anchor < 0) | (window.anchor + window.shape > window.room)).any(-1)
        if outside.any():
            parts = (np.broadcast_to(v, (*outside.shape, 2))[outside].reshape(-1, 2)[0] for v in (window.shape, window.anchor, window.room))
            (height, width), (top, left), (rows, columns) = ([int(n) for n in part] for part in parts)
            raise Unfit(f"the window of {height}x{width} pixels at [{top}, {left}] is not inside the image, which has {rows}x{columns}")

    def _argument(self, values: Any, ndim: int, dtype: Any) -> Any:
        """What an operator is told: a DataNode where it differs from sample to sample, plain numbers where it has but `ndim` axes."""
        array = np.asarray(values).astype(dtype)
        if array.ndim > ndim:
            return self._feed(array)
        return array.ravel().tolist() if ndim else array.item()

    def _whole(self, values: Any) -> Any:
        return self._argument(values, 1, np.int32)

    def _matrix(self, matrix: NDArray[np.float64]) -> Any:
        """(..., 2, 3) as a perspective matrix."""
        last = np.broadcast_to([0.0, 0.0, 1.0], (*matrix.shape[:-2], 1, 3))
        return self._argument(np.concatenate([matrix, last], -2), 2, np.float32)

    def _take_last_window(self) -> Window | None:
        """The deferred window, where crop_mirror_normalize can cut it."""
        if self._decode or self._resize or not self._window or self._window.fill is not None or (self._flips and self._flips.vertical is not None):
            return None
        window, self._window = self._window, None
        return window

    def _take_last_mirror(self) -> Flips | None:
        """The deferred flips, where crop_mirror_normalize can do them."""
        if not self._flips or self._flips.vertical is not None:
            return None
        flips, self._flips = self._flips, None
        return flips

    def _emit(self, op: str, steps: list[str], make: Callable[[Any], Any]) -> None:
        device = "mixed" if self.device == "gpu" and op.startswith("decoders.") else self.device
        self.emitted.append(Emitted(op, device, tuple(steps)))
        if self._node is not None:
            self._node = make(self._node)

    def _carry_out(self) -> None:
        if self._decode:
            self._carry_out_decode(self._decode)
        if self._window:
            window, self._window = self._window, None
            anchor, shape = self._whole(window.anchor), self._whole(window.shape)
            self._emit("slice", [window.step], lambda pixels: ops.cut(pixels, anchor, shape, window.fill))
        if self._resize:
            self._carry_out_resize(self._resize)
        if self._flips:
            flips, self._flips = self._flips, None
            flags = [0 if f is None else self._argument(f, 0, np.int32) for f in (flips.horizontal, flips.vertical)]
            self._emit("flip", flips.steps, lambda pixels: ops.flip(pixels, *flags))
        if self._floats:
            floats, self._floats = self._floats, None
            self._normalize(floats, floats.dtype, "HWC", None, None)

    def _carry_out_decode(self, decode: Decode) -> None:
        self._decode = None
        how = (self.device, decode.mode, decode.exif, self._decoder_options)
        if self._region_decode and self._window and self._window.fill is None:
            window, self._window = self._window, None
            self._emit_decode_window(window.bounds, how, [decode.step, window.step])
        elif self._region_decode and self._resize and self._resize.region and not self._window:
            resize, region = self._resize, self._resize.region
            needed = needed_window(resize.before, resize.shape, region.bounds, resize.interpolation)
            self._emit_decode_window(needed, how, [decode.step, *resize.steps])
            self._carry_out_resize(resize, origin=needed[0])
        else:
            self._emit("decoders.image", [decode.step], lambda data: ops.decode(data, *how))

    def _emit_decode_window(self, bounds: tuple[Any, Any], how: tuple[Any, ...], steps: list[str]) -> None:
        anchor, shape = (self._whole(b) for b in bounds)
        self._emit("decoders.image_slice", steps, lambda data: ops.decode_window(data, anchor, shape, *how))

    def _carry_out_resize(self, resize: Resize, origin: Any = 0.0) -> None:
        """origin: the pixels hold not the whole image but what begins there, [top, left]."""
        self._resize = None
        region = resize.region.bounds if resize.region else None
        shape = self._argument(resize.shape if region is None else region[1], 1, np.float32)
        how = (resize.interpolation, resize.antialias)
        if region is None and resize.interpolation != "nearest":
            self._emit("resize", resize.steps, lambda pixels: ops.resize(pixels, shape, *how))
            return
        corners = source_region(resize.before, resize.shape, region, resize.interpolation)
        start, end = (self._argument(c - origin, 1, np.float32) for c in corners)
        self._emit("resize", resize.steps, lambda pixels: ops.resize_region(pixels, shape, start, end, *how))

    def _normalize(self, floats: Floats, dtype: str, layout: ops.Layout, window: Window | None, mirror: Flips | None) -> None:
        share: tuple[Any, Any] = (None, None)
        extent: tuple[Any, Any] = (None, None)
        if window:
            shares = window.anchor / np.maximum(window.room - window.shape, 1.0)
            share, extent = self._apart(shares), self._apart(window.shape)
        flag = None if mirror is None else self._argument(mirror.horizontal, 0, np.int32)
        steps = ([window.step] if window else []) + (mirror.steps if mirror else []) + floats.steps
        self._emit("crop_mirror_normalize", steps, lambda pixels: ops.normalize(pixels, flag, share, extent, dtype, layout, **floats.in_levels()))

    def _apart(self, pair: Any) -> tuple[Any, Any]:
        first, second = (self._argument(pair[..., n], 0, np.float32) for n in (0, 1))
        return first, second


def _single(values: NDArray[Any]) -> NDArray[Any]:
    """In the type that DALI's operators take: int32 or float32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def _both(first: Any, second: Any) -> Any:
    """Mirrored by both flags: not at all where both are set."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
