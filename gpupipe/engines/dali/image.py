"""An image that defers work, so that neighbouring steps become one DALI operator.

What can be deferred, in the order in which it will be carried out:

    decode -> window -> resize (and a region of it) -> flip -> floats (scale, mean, std, dtype)

A call that does not fit behind what is deferred already carries that out first. So fusing is no
rewriting of a finished graph: it is what remains when nothing is done before it must be. `emitted`
tells which operator does the work of which steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali import ops
from gpupipe.engines.dali.node import Feed, Node
from gpupipe.engines.dali.pending_ops import (
    Decoding,
    Flips,
    Floats,
    PendingDecode,
    PendingResize,
    Window,
)
from gpupipe.engines.dali.resampling import needed_window, source_region
from gpupipe.pipeline.step import Spec


class FusingImage(Node):
    """The image that a step's `dali` works on: see step.DaliImage for what each method means."""

    def __init__(
        self,
        data: Any,
        size: NDArray[np.float64],
        feed: Feed,
        device: Literal["cpu", "gpu"],
        region_decode: bool,
        decoder_options: dict[str, Any],
    ) -> None:
        """data: DataNode of encoded bytes, or None where only values are wanted. size: (B, 2), of
        the images when decoded. region_decode: whether the decoder may be asked for a part of an
        image.
        """
        super().__init__(data, size, feed, device, Spec())
        self.decoding = Decoding()
        self._region_decode = region_decode
        self._decoder_options = decoder_options
        self._decode: PendingDecode | None = None
        self._window: Window | None = None
        self._resize: PendingResize | None = None
        self._flips: Flips | None = None
        self._floats: Floats | None = None

    # --- asked by steps

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        self.decoding = Decoding(mode, apply_exif_orientation, dtype)
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
        """To another dtype, and not later."""
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

    # --- asked by the engine

    def finish(self, dtype: str, layout: ops.Layout) -> Any:
        """The image as a DataNode of `dtype`, or of the one that dtypes.as_integers names, and
        `layout`; everything carried out.
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
            return self._for_torch(dtype)
        self._normalize(floats or Floats(self.spec.dtype, dtype), dtype, layout, window, mirror)
        return self._node

    # --- carrying out

    def _ready(self) -> None:
        self._carry_out()

    def _on_pixels(self, op: str, make: Callable[[Any], Any]) -> None:
        self._emit_through(op, [self.step], make)

    @property
    def _dtype(self) -> str:
        return self._floats.given if self._floats else self.spec.dtype

    def _usual(self, dtype: str) -> bool:
        """Whether crop_mirror_normalize takes what there is, and makes `dtype`."""
        return dtype in ops.DTYPES and self.spec.dtype in ops.DTYPES

    def _defers(self, dtype: str) -> bool:
        """Whether crop_mirror_normalize can make `dtype` later: it rounds floats to integers, and
        rounds to a float once, at its end.
        """
        loses = dtype == "uint8" or (dtype, self.spec.dtype) == ("float32", "float16")
        return self._usual(dtype) and not loses

    def _take_last_window(self) -> Window | None:
        """The deferred window, where crop_mirror_normalize can cut it."""
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
        """The deferred flips, where crop_mirror_normalize can do them."""
        if not self._flips or self._flips.vertical is not None:
            return None
        flips, self._flips = self._flips, None
        return flips

    def _carry_out(self) -> None:
        self._carry_out_moves()
        if self._floats:
            floats, self._floats = self._floats, None
            self._normalize(floats, floats.dtype, "HWC", None, None)

    def _carry_out_moves(self) -> None:
        """All but the floats."""
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
        how = (self.device, decode.how, self._decoder_options)
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

    def _emit_decode_window(
        self, bounds: tuple[Any, Any], how: tuple[Any, ...], steps: list[str]
    ) -> None:
        anchor, shape = (self._whole(b) for b in bounds)
        self._emit(
            "decoders.image_slice", steps, lambda data: ops.decode_window(data, anchor, shape, *how)
        )

    def _carry_out_resize(self, resize: PendingResize, origin: Any = 0.0) -> None:
        """origin: the pixels hold not the whole image but what begins there, [top, left]."""
        self._resize = None
        region = resize.region.bounds if resize.region else None
        shape = self._argument(resize.shape if region is None else region[1], 1, np.float32)
        how = (resize.interpolation, resize.antialias)
        if region is None and resize.interpolation != "nearest":
            self._emit_through(
                "resize", resize.steps, lambda pixels: ops.resize(pixels, shape, *how)
            )
            return
        corners = source_region(resize.before, resize.shape, region, resize.interpolation)
        start, end = (self._argument(c - origin, 1, np.float32) for c in corners)
        self._emit_through(
            "resize",
            resize.steps,
            lambda pixels: ops.resize_region(pixels, shape, start, end, *how),
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
            share, extent = self._apart(shares), self._apart(window.shape)
        flag = None if mirror is None else self._argument(mirror.horizontal, 0, np.int32)
        steps = ([window.step] if window else []) + (mirror.steps if mirror else []) + floats.steps
        self._emit(
            "crop_mirror_normalize",
            steps,
            lambda pixels: ops.normalize(
                pixels, flag, share, extent, dtype, layout, **floats.in_levels()
            ),
        )

    def _apart(self, pair: Any) -> tuple[Any, Any]:
        first, second = (self._argument(pair[..., n], 0, np.float32) for n in (0, 1))
        return first, second


def _both(first: Any, second: Any) -> Any:
    """Mirrored by both flags: not at all where both are set."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
