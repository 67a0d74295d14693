"""An image in a DALI graph under construction that defers work, so that neighbouring steps become one operator.

What can be deferred, in the order in which it will be carried out:

    decode -> window -> resize (and a region of it) -> flip -> floats (scale, mean, std, dtype)

A call that does not fit behind what is deferred already carries that out first. So fusing is no rewriting of a finished graph: it
is what remains when nothing is done before it must be. `emitted` tells which operator does the work of which steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gpupipe.arithmetic import stack
from gpupipe.engines import dali_ops as ops
from gpupipe.step import FLOATS, Spec


@dataclass(frozen=True)
class Emitted:
    """One DALI operator over pixels: its name, its device ("cpu", "gpu", "mixed"), and the steps whose work it does."""

    op: str
    device: str
    steps: tuple[str, ...]


@dataclass
class _Decode:
    mode: str
    exif: bool
    step: str


@dataclass
class _Window:
    anchor: Any
    shape: Any
    fill: ops.Fill | None
    step: str

    @property
    def bounds(self) -> tuple[Any, Any]:
        return self.anchor, self.shape


@dataclass
class _Resize:
    before: Any
    shape: Any
    interpolation: str
    antialias: bool
    step: str
    region: _Window | None = None

    @property
    def steps(self) -> list[str]:
        return [self.step] + ([self.region.step] if self.region else [])


@dataclass
class _Flips:
    horizontal: Any = None
    vertical: Any = None
    steps: list[str] = field(default_factory=list)


@dataclass
class _Floats:
    """x / divide, then (x - mean) / std, then `dtype`."""

    dtype: str
    divide: float = 1.0
    mean: ops.Fill | None = None
    std: ops.Fill = (1.0,)
    steps: list[str] = field(default_factory=list)

    def in_levels(self) -> dict[str, Any]:
        """mean and std for an image that has not been divided yet."""
        return {"mean": [m * self.divide for m in self.mean or (0.0,)], "std": [s * self.divide for s in self.std]}


class FusingImage:
    """The image that a step's `dali` works on: see step.DaliImage for what each method means."""

    def __init__(self, data: Any, device: Literal["cpu", "gpu"], region_decode: bool, decoder_options: dict[str, Any]) -> None:
        """data: DataNode of encoded bytes. region_decode: whether the decoder may be asked for a part of an image."""
        self.device: Literal["cpu", "gpu"] = device
        self.spec = Spec()
        self.step = ""
        self.emitted: list[Emitted] = []
        self._node = data
        self._region_decode = region_decode
        self._decoder_options = decoder_options
        self._size: Any = None
        self._node_shape: Any = None
        self._decode: _Decode | None = None
        self._window: _Window | None = None
        self._resize: _Resize | None = None
        self._flips: _Flips | None = None
        self._floats: _Floats | None = None

    # --- asked by steps

    @property
    def size(self) -> Any:
        if self._size is None:
            self._size = ops.size_of(self._shape())
        return self._size

    @property
    def width_height(self) -> Any:
        if self._size is None:
            return ops.reversed_size_of(self._shape())
        return stack(self._size[1], self._size[0])

    def _shape(self) -> Any:
        """[height, width, channels] as DALI tells it; asked once, and only while nothing that changes the size is deferred."""
        if self._node_shape is None:
            self._node_shape = ops.encoded_shape(self._node, self._decode.exif) if self._decode else ops.pixel_shape(self._node)
        return self._node_shape

    @property
    def pixels(self) -> Any:
        self._carry_out()
        return self._node

    def replace(self, op: str, node: Any) -> None:
        self._carry_out()
        self._emit(op, node, [self.step])
        self._size = self._node_shape = None

    def decode(self, mode: str, apply_exif_orientation: bool) -> None:
        self._decode = _Decode(mode, apply_exif_orientation, self.step)

    def crop(self, anchor: Any, shape: Any, fill: ops.Fill | None = None) -> None:
        if self._resize and not self._resize.region and fill is None and not (self._flips or self._floats):
            self._resize.region = _Window(anchor, shape, None, self.step)
        else:
            if self._window or self._resize or self._flips or self._floats:
                self._carry_out()
            self._window = _Window(anchor, shape, fill, self.step)
        self._size = ops.pair(shape)

    def pad(self, before: Any, after: Any, mode: str) -> None:
        size = self.size
        self._emit("experimental.warp_perspective", ops.pad(self.pixels, size, before, after, mode), [self.step])
        self._size = size + before + after

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        if self._resize or self._flips or self._floats:
            self._carry_out()
        self._resize = _Resize(self.size, shape, interpolation, antialias, self.step)
        self._size = ops.pair(shape)

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        if self._floats:
            self._carry_out()
        flips = self._flips or _Flips()
        self._flips = _Flips(_both(flips.horizontal, horizontal), _both(flips.vertical, vertical), [*flips.steps, self.step])

    def warp(self, linear: Any, source: Any, output: Any, interpolation: str, fill: ops.Fill, shape: Any = None) -> None:
        fill = fill * (self.spec.channels or 1) if len(fill) == 1 else fill
        node = ops.warp(self.pixels, self.device, linear, source, output, interpolation, fill, shape)
        self._emit(ops.warp_name(self.device), node, [self.step])
        self._size = self._size if shape is None else shape

    def to_dtype(self, dtype: str, scale: bool) -> None:
        if dtype == "uint8" and self.spec.dtype in FLOATS:
            self._emit("cast", ops.to_uint8(self.pixels, scale), [self.step])
            return
        floats = self._floats or _Floats(dtype, 255.0 if scale else 1.0)
        self._floats = _Floats(dtype, floats.divide, floats.mean, floats.std, [*floats.steps, self.step])

    def normalize(self, mean: ops.Fill, std: ops.Fill) -> None:
        if self._floats and self._floats.mean is not None:
            self._carry_out()
        floats = self._floats or _Floats(self.spec.dtype)
        self._floats = _Floats(floats.dtype, floats.divide, mean, std, [*floats.steps, self.step])

    # --- asked by the engine

    def finish(self, dtype: str, layout: ops.Layout) -> Any:
        """The image as a DataNode of `dtype` ("uint8", "float16", "float32") and `layout`, everything carried out."""
        window = self._take_last_window()
        mirror = self._take_last_mirror()
        floats, self._floats = self._floats, None
        self._carry_out()
        if dtype == "uint8" and not (window or mirror or floats):
            if layout == "CHW":
                self._emit("transpose", ops.planes(self._node), [])
            return self._node
        levels = (floats or _Floats(dtype)).in_levels()
        bounds, flag = window.bounds if window else None, mirror.horizontal if mirror else None
        node = ops.normalize(self._node, dtype, layout, **levels, mirror=flag, window=bounds)
        steps = ([window.step] if window else []) + (mirror.steps if mirror else []) + (floats.steps if floats else [])
        self._emit("crop_mirror_normalize", node, steps)
        return self._node

    # --- carrying out

    def _take_last_window(self) -> _Window | None:
        """The deferred window, where crop_mirror_normalize can cut it."""
        if self._decode or self._resize or not self._window or self._window.fill is not None or (self._flips and self._flips.vertical is not None):
            return None
        window, self._window = self._window, None
        return window

    def _take_last_mirror(self) -> _Flips | None:
        """The deferred flips, where crop_mirror_normalize can do them."""
        if not self._flips or self._flips.vertical is not None:
            return None
        flips, self._flips = self._flips, None
        return flips

    def _emit(self, op: str, node: Any, steps: list[str]) -> None:
        device = "mixed" if self.device == "gpu" and op.startswith("decoders.") else self.device
        self._node = node
        self.emitted.append(Emitted(op, device, tuple(steps)))

    def _carry_out(self) -> None:
        if self._decode:
            self._carry_out_decode(self._decode)
        if self._window:
            window, self._window = self._window, None
            self._emit("slice", ops.cut(self._node, window.anchor, window.shape, window.fill), [window.step])
        if self._resize:
            self._carry_out_resize(self._resize)
        if self._flips:
            flips, self._flips = self._flips, None
            self._emit("flip", ops.flip(self._node, flips.horizontal, flips.vertical), flips.steps)
        if self._floats:
            floats, self._floats = self._floats, None
            node = ops.normalize(self._node, floats.dtype, "HWC", **floats.in_levels())
            self._emit("crop_mirror_normalize", node, floats.steps)

    def _carry_out_decode(self, decode: _Decode) -> None:
        data = ops.after(self._node, self._shape())
        self._decode = None
        arguments = (data, self.device, decode.mode, decode.exif, self._decoder_options)
        if self._region_decode and self._window and self._window.fill is None:
            window, self._window = self._window, None
            self._emit("decoders.image_slice", ops.decode(*arguments, window=window.bounds), [decode.step, window.step])
        elif self._region_decode and self._resize and self._resize.region and not self._window:
            resize, region = self._resize, self._resize.region
            needed = ops.needed_window(resize.before, resize.shape, region.bounds, resize.interpolation)
            self._emit("decoders.image_slice", ops.decode(*arguments, window=needed), [decode.step, *resize.steps])
            self._carry_out_resize(resize, origin=needed[0])
        else:
            self._emit("decoders.image", ops.decode(*arguments), [decode.step])

    def _carry_out_resize(self, resize: _Resize, origin: Any = None) -> None:
        self._resize = None
        region = resize.region.bounds if resize.region else None
        node = ops.resize(self._node, resize.before, resize.shape, resize.interpolation, resize.antialias, region, origin)
        self._emit("resize", node, resize.steps)


def _both(first: Any, second: Any) -> Any:
    """Mirrored by both flags: not at all where both are set."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
