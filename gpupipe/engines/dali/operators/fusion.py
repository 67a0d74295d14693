"""Operations on an image that may fuse with their neighbours into one DALI operator.

`ImageTracer` adds operations one by one. `fuse` has the rules by which an operation fuses with the
operation before it:

    decode, crop                 decoders.image_slice   decodes only the window
    decode, resize, crop         decoders.image_slice   decodes the window that the resize reads
                                 resize                 resizes a region of that window
    resize, crop                 resize                 resizes a region
    flip, flip                   flip
    to_dtype, normalize          crop_mirror_normalize
    crop, flip, normalize, end   crop_mirror_normalize  also transposes, for the delivery

Invariant: fused operations return the same pixels as the operations one by one. Only after a resize
of a region may a uint8 value differ, by 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.data_node import DataNode

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.dali.operators import dtypes, ops
from gpupipe.engines.dali.operators.ops import Argument, Floats, argument
from gpupipe.engines.dali.operators.subgraph import Subgraph, operator


@dataclass(frozen=True)
class WindowNode:
    """Cuts a window from each image.

    Attributes:
        anchor: [top, left] of the window, in pixels.
        shape: [height, width] of the window.
        fill: The value of pixels outside the image, or None if the window is inside.
        steps: The keys of the pipeline's steps that the node implements.
        dtype: The dtype of the pixels.
        room: [height, width] of the image from which the window is cut.
    """

    anchor: Floats
    shape: Floats
    fill: ops.Fill | None
    steps: tuple[str, ...]
    dtype: str
    room: Floats

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        return self.anchor, self.shape

    @property
    def arguments(self) -> list[Any]:
        return [argument(bound, 1, np.int32) for bound in self.bounds]

    def subgraphs(self, device: str) -> list[Subgraph]:
        make = dtypes.through_supported("slice", self.dtype, partial(ops.cut, fill=self.fill))
        return [operator("slice", device, self.steps, make, *self.arguments)]


@dataclass(frozen=True)
class DecodeNode:
    """Decodes image files, or only a window of each.

    Attributes:
        how: The color mode, the dtype, and whether to apply the EXIF orientation.
        steps: The keys of the pipeline's steps that the node implements.
        can_cut: Whether the decoder may decode a window; if not, the operator slice cuts it from
            the decoded image.
        options: Further arguments of DALI's decoder.
        is_done: Whether the input is decoded pixels, so that the node only cuts the window.
        window: The window to decode, or None for whole images.
    """

    how: DecodeOptions
    steps: tuple[str, ...]
    can_cut: bool
    options: Mapping[str, Any]
    is_done: bool = False
    window: WindowNode | None = None

    def subgraphs(self, device: str) -> list[Subgraph]:
        def make(data: DataNode, *window: Argument) -> DataNode:
            return ops.decode(data, device, self.how, self.options, *window)

        decoder = "mixed" if device == "gpu" else "cpu"
        if self.window and self.can_cut and not self.is_done:
            name, steps = "decoders.image_slice", self.steps + self.window.steps
            return [operator(name, decoder, steps, make, *self.window.arguments)]
        whole = [] if self.is_done else [operator("decoders.image", decoder, self.steps, make)]
        return whole + (self.window.subgraphs(device) if self.window else [])


@dataclass(frozen=True)
class ResizeNode:
    """Resizes images; computes only a window of the resized images if `region` is set.

    Attributes:
        before: [height, width] of the whole images before the resize, in pixels.
        shape: [height, width] of the whole images after the resize, in pixels.
        interpolation: "nearest", "bilinear" or "bicubic".
        antialias: Whether to low-pass before shrinking.
        steps: The keys of the pipeline's steps that the node implements.
        dtype: The dtype of the pixels.
        region: The window of the resized images to compute, or None for the whole images.
        origin: [top, left] of the decoded windows in the whole images, in pixels; 0 if the whole
            images are decoded.
    """

    before: Floats
    shape: Floats
    interpolation: str
    antialias: bool
    steps: tuple[str, ...]
    dtype: str
    region: WindowNode | None = None
    origin: Floats | float = 0.0

    def subgraphs(self, device: str) -> list[Subgraph]:
        make = partial(ops.resize, interpolation=self.interpolation, antialias=self.antialias)
        region = self.region.bounds if self.region else None
        arguments = ops.resize_arguments(
            self.before, self.shape, self.interpolation, region, self.origin
        )
        through = dtypes.through_supported("resize", self.dtype, make)
        return [operator("resize", device, self.steps, through, *arguments)]


@dataclass(frozen=True)
class FlipsNode:
    """Mirrors the samples whose flag for an axis is True, along this axis; None mirrors none."""

    horizontal: NDArray[np.bool_] | None
    vertical: NDArray[np.bool_] | None
    steps: tuple[str, ...]
    dtype: str

    def subgraphs(self, device: str) -> list[Subgraph]:
        flags = (ops.flip_argument(flag) for flag in (self.horizontal, self.vertical))
        make = dtypes.through_supported("flip", self.dtype, ops.flip)
        return [operator("flip", device, self.steps, make, *flags)]


@dataclass(frozen=True)
class NormalizeNode:
    """Computes x / divide for each value, then (x - mean) / std, then casts to `dtype`.

    `ImageTracer.finish` adds a NormalizeNode that converts to the batch's layout and dtype, if the
    operator crop_mirror_normalize supports the dtypes. A NormalizeNode also cuts or mirrors if a
    WindowNode or a FlipsNode fused with it.

    Attributes:
        steps: The keys of the pipeline's steps that the node implements.
        dtype: The dtype of the result.
        divide: 255 to scale uint8 to 0..1, else 1.
        mean: One number, or one per channel. None if there is no normalize yet.
        std: One number, or one per channel.
        layout: The layout in which the batch is delivered; None if other operations follow.
        window: The window to cut, or None.
        mirror: Whether to mirror each sample left to right, (B,), or None.
    """

    steps: tuple[str, ...]
    dtype: str
    divide: float = 1.0
    mean: ops.Fill | None = None
    std: ops.Fill = (1.0,)
    layout: ops.Layout | None = None
    window: WindowNode | None = None
    mirror: NDArray[np.bool_] | None = None

    def subgraphs(self, device: str) -> list[Subgraph]:
        if self.dtype == "uint8" and not self.steps:  # nothing to compute
            planes = operator("transpose", device, (), ops.planes)
            return [planes] if self.layout == "CHW" else []

        def make(pixels: DataNode, *arguments: Argument) -> DataNode:
            *window, mirror = arguments
            mean, std = (
                [n * self.divide for n in part] for part in (self.mean or (0.0,), self.std)
            )
            kind = {"dtype": self.dtype, "layout": self.layout or "HWC"}
            return ops.normalize(pixels, window, mirror, mean=mean, std=std, **kind)

        window: list[Any] = []
        if self.window:
            share = self.window.anchor / np.maximum(self.window.room - self.window.shape, 1.0)
            pairs = (share, self.window.shape)
            window = [argument(pair[..., n], 0, np.float32) for pair in pairs for n in (0, 1)]
        flag = None if self.mirror is None else ops.flip_argument(self.mirror)
        return [operator("crop_mirror_normalize", device, self.steps, make, *window, flag)]


Operation = Subgraph | DecodeNode | WindowNode | ResizeNode | FlipsNode | NormalizeNode


def fuse(first: Operation, second: Operation) -> list[Operation] | None:
    """Return the operations that replace two neighbours; None if no rule fits them."""
    fused: list[Operation] | None = None
    match first, second:
        case DecodeNode(window=None), WindowNode(fill=None):
            fused = [replace(first, window=second)]
        case DecodeNode(window=None, can_cut=True), ResizeNode(region=WindowNode() as region):
            resize = second.before, second.shape, second.interpolation
            bounds = ops.needed_window(*resize, region.bounds)
            window = WindowNode(*bounds, None, second.steps, second.dtype, second.before)
            fused = [replace(first, window=window), replace(second, origin=window.anchor)]
        case ResizeNode(region=None), WindowNode(fill=None):
            fused = [replace(first, region=second, steps=first.steps + second.steps)]
        case FlipsNode(), FlipsNode():
            flags = (
                _both(first.horizontal, second.horizontal),
                _both(first.vertical, second.vertical),
            )
            fused = [FlipsNode(*flags, first.steps + second.steps, first.dtype)]
        case NormalizeNode(), NormalizeNode(window=None, mirror=None) if not (
            first.mean and second.mean
        ):
            by, steps = first if first.mean else second, first.steps + second.steps
            fused = [replace(second, steps=steps, divide=first.divide, mean=by.mean, std=by.std)]
        case FlipsNode(vertical=None), NormalizeNode(layout=str(), window=None, mirror=None):
            steps = first.steps + second.steps
            fused = [replace(second, mirror=first.horizontal, steps=steps)]
        case WindowNode(fill=None), NormalizeNode(layout=str(), window=None):
            fused = [replace(second, window=first, steps=first.steps + second.steps)]
    return fused


def _both(first: Any, second: Any) -> Any:
    """Combine the flags of two flips along one axis: two flips of a sample cancel each other."""
    if first is None or second is None:
        return second if first is None else first
    return first ^ second
