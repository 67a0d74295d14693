"""An image that defers work, so that neighbouring steps fuse into one DALI operator.

It defers operations in the order in which their operators run:

    decode -> window -> resize (and a region of it) -> flip -> floats (scale, mean, std, dtype)

If a call cannot come after the deferred operations in this order, they become operators first.
Fusion happens while the graph is built; no finished graph is rewritten. `emitted` lists each
operator with the steps that it implements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.branches import Feed
from gpupipe.engines.dali.operators.node import Node
from gpupipe.engines.dali.operators.pending_ops import (
    Flips,
    Floats,
    PendingDecode,
    PendingResize,
    Window,
)
from gpupipe.engines.dali.operators.resampling import needed_window, source_region
from gpupipe.pipeline.step import Spec


class FusingImage(Node):
    """The primitives of a field that is an image file; see Primitives for each method."""

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        region_decode: bool,
        decoder_options: dict[str, Any],
    ) -> None:
        """Start from encoded bytes.

        Args:
            data: DataNode of encoded bytes, or None to compute only argument values.
            size: [height, width] of each decoded image, (B, 2).
            feed: Feeds one operator argument to the graph; see branches.Feed.
            device: The device of the operators.
            region_decode: Whether the decoder may decode a region of an image.
            decoder_options: Further arguments of DALI's decoder.
        """
        super().__init__(data, size, feed, device, Spec())
        self.decoding = DecodeOptions()
        self._region_decode = region_decode
        self._decoder_options = decoder_options
        self._decode: PendingDecode | None = None
        self._window: Window | None = None
        self._resize: PendingResize | None = None
        self._flips: Flips | None = None
        self._floats: Floats | None = None
        self._is_decoded = False

    # --- called by steps

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        self.decoding = DecodeOptions(mode, apply_exif_orientation, dtype)
        self._decode = PendingDecode(self.decoding, self.step)

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        window = Window(
            np.asarray(anchor, np.float64),
            np.asarray(shape, np.float64),
            fill,
            self.step,
            self._size,
        )
        if fill is None:
            self._check_inside(*window.bounds)
        if (
            self._resize
            and not self._resize.region
            and fill is None
            and not (self._flips or self._floats)
        ):
            self._resize.region = window
        else:
            if self._window or self._resize or self._flips or self._floats:
                self._carry_out()
            self._window = window
        self._size = window.shape

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        if self._resize or self._flips or self._floats:
            self._carry_out()
        self._resize = PendingResize(
            self._size, np.asarray(shape, np.float64), interpolation, antialias, self.step
        )
        self._size = self._resize.shape

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        if self._floats:
            self._carry_out()
        flips = self._flips or Flips()
        self._flips = Flips(
            _both(flips.horizontal, horizontal),
            _both(flips.vertical, vertical),
            [*flips.steps, self.step],
        )

    def to_dtype(self, dtype: str, scale: bool) -> None:
        if dtype == self.spec.dtype:
            return
        if not self._defers(dtype):
            self._convert(dtype, scale)
            return
        floats = self._floats or Floats(self.spec.dtype, dtype, 255.0 if scale else 1.0)
        self._floats = replace(floats, dtype=dtype, steps=[*floats.steps, self.step])

    def _convert(self, dtype: str, scale: bool) -> None:
        """Emit a conversion to another dtype now, without deferring it."""
        self._carry_out()
        self._cast(dtype, scale)

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        if self.spec.dtype == "float64":
            self._carry_out()
            self._normalize_float64(mean, std, 0)
            return
        if self._floats and self._floats.mean is not None:
            self._carry_out()
        floats = self._floats or Floats(self.spec.dtype, self.spec.dtype)
        self._floats = replace(floats, mean=mean, std=std, steps=[*floats.steps, self.step])

    # --- called by the engine

    def begin_decoded(self) -> None:
        """Begin with decoded pixels, and cut windows as the decoder does, to the same pixels."""
        self._is_decoded = True
        self._decode = PendingDecode(self.decoding, "")

    def finish(self, dtype: str, layout: ops.Layout) -> Any:
        """Emit all deferred operations, and return the image as a DataNode.

        Args:
            dtype: The dtype to deliver. The node has dtypes.as_integers(dtype).
            layout: The layout to deliver.
        """
        if dtype != self.spec.dtype and not self._defers(dtype):
            self._convert(dtype, False)
        window = self._take_last_window() if self._usual(dtype) else None
        mirror = self._take_last_mirror() if self._usual(dtype) else None
        self._carry_out_moves()
        floats, self._floats = self._floats, None
        if not self._usual(dtype) or (dtype == "uint8" and not (window or mirror or floats)):
            if layout == "CHW":
                self._emit("transpose", [], ops.planes)
            return self._to_torch_dtype(dtype)
        self._normalize(floats or Floats(self.spec.dtype, dtype), dtype, layout, window, mirror)
        return self._node

    # --- emitting operators

    def _ready(self) -> None:
        self._carry_out()

    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        self._emit_through(op, [self.step], make)

    @property
    def _dtype(self) -> str:
        return self._floats.given if self._floats else self.spec.dtype

    def _usual(self, dtype: str) -> bool:
        """Whether crop_mirror_normalize supports the current dtype and the output dtype `dtype`."""
        return dtype in ops.DTYPES and self.spec.dtype in ops.DTYPES

    def _defers(self, dtype: str) -> bool:
        """Whether a later crop_mirror_normalize converts to `dtype` as exactly as a cast does now.

        For uint8 it does not: it rounds floats to integers instead of truncating them. From float16
        to float32 it does not: it rounds only once, at its end, and skips the rounding to float16.
        """
        is_inexact = dtype == "uint8" or (dtype, self.spec.dtype) == ("float32", "float16")
        return self._usual(dtype) and not is_inexact

    def _take_last_window(self) -> Window | None:
        """Take the deferred window if crop_mirror_normalize can cut it, else return None."""
        if (
            self._decode
            or self._resize
            or not self._window
            or self._window.fill is not None
            or (self._flips and self._flips.vertical is not None)
        ):
            return None
        window, self._window = self._window, None
        return window

    def _take_last_mirror(self) -> Flips | None:
        """Take the deferred flips if crop_mirror_normalize can do them, else return None."""
        if not self._flips or self._flips.vertical is not None:
            return None
        flips, self._flips = self._flips, None
        return flips

    def _carry_out(self) -> None:
        """Emit all deferred operations."""
        self._carry_out_moves()
        if self._floats:
            floats, self._floats = self._floats, None
            self._normalize(floats, floats.dtype, "HWC", None, None)

    def _carry_out_moves(self) -> None:
        """Emit the deferred operations except the floats."""
        if self._decode:
            self._carry_out_decode(self._decode)
        if self._window:
            window, self._window = self._window, None
            anchor, shape = self._whole(window.anchor), self._whole(window.shape)
            self._emit_through(
                "slice", [window.step], lambda pixels: ops.cut(pixels, anchor, shape, window.fill)
            )
        if self._resize:
            self._carry_out_resize(self._resize)
        if self._flips:
            flips, self._flips = self._flips, None
            flags = [
                0 if f is None else self._argument(f, 0, np.int32)
                for f in (flips.horizontal, flips.vertical)
            ]
            self._emit_through("flip", flips.steps, lambda pixels: ops.flip(pixels, *flags))

    def _carry_out_decode(self, decode: PendingDecode) -> None:
        self._decode = None
        options = (self.device, decode.how, self._decoder_options)
        if self._region_decode and self._window and self._window.fill is None:
            window, self._window = self._window, None
            self._emit_decode_window(window.bounds, options, [decode.step, window.step])
        elif self._region_decode and self._resize and self._resize.region and not self._window:
            resize, region = self._resize, self._resize.region
            needed = needed_window(resize.before, resize.shape, region.bounds, resize.interpolation)
            self._emit_decode_window(needed, options, [decode.step, *resize.steps])
            self._carry_out_resize(resize, origin=needed[0])
        elif not self._is_decoded:
            self._emit("decoders.image", [decode.step], lambda data: ops.decode(data, *options))

    def _emit_decode_window(
        self, bounds: tuple[Any, Any], options: tuple[Any, ...], steps: list[str]
    ) -> None:
        anchor, shape = (self._whole(b) for b in bounds)
        if self._is_decoded:
            self._emit("slice", steps[1:], lambda pixels: ops.cut(pixels, anchor, shape, None))
            return
        self._emit(
            "decoders.image_slice",
            steps,
            lambda data: ops.decode_window(data, anchor, shape, *options),
        )

    def _carry_out_resize(self, resize: PendingResize, origin: Any = 0.0) -> None:
        """Emit a resize; if only a region was decoded, it begins at `origin`, [top, left]."""
        self._resize = None
        region = resize.region.bounds if resize.region else None
        shape = self._argument(resize.shape if region is None else region[1], 1, np.float32)
        options = (resize.interpolation, resize.antialias)
        if region is None and resize.interpolation != "nearest":
            self._emit_through(
                "resize", resize.steps, lambda pixels: ops.resize(pixels, shape, *options)
            )
            return
        corners = source_region(resize.before, resize.shape, region, resize.interpolation)
        start, end = (self._argument(c - origin, 1, np.float32) for c in corners)
        self._emit_through(
            "resize",
            resize.steps,
            lambda pixels: ops.resize_region(pixels, shape, start, end, *options),
        )

    def _normalize(
        self,
        floats: Floats,
        dtype: str,
        layout: ops.Layout,
        window: Window | None,
        mirror: Flips | None,
    ) -> None:
        share: tuple[Any, Any] = (None, None)
        extent: tuple[Any, Any] = (None, None)
        if window:
            shares = window.anchor / np.maximum(window.room - window.shape, 1.0)
            share, extent = self._split(shares), self._split(window.shape)
        flag = None if mirror is None else self._argument(mirror.horizontal, 0, np.int32)
        steps = ([window.step] if window else []) + (mirror.steps if mirror else []) + floats.steps
        self._emit(
            "crop_mirror_normalize",
            steps,
            lambda pixels: ops.normalize(
                pixels, flag, share, extent, dtype, layout, **floats.in_levels()
            ),
        )

    def _split(self, pair: Any) -> tuple[Any, Any]:
        first, second = (self._argument(pair[..., n], 0, np.float32) for n in (0, 1))
        return first, second


def _both(first: Any, second: Any) -> Any:
    """Combine two flip flags: two flips of one axis cancel."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
