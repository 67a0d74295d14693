"""Helpers for `Step.torch`: tensors whose last axes are spatial, with the channels before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpupipe.dataset.layout import canonical_layout
from gpupipe.runtime.memory import to_device

if TYPE_CHECKING:
    from torch import Tensor


def in_float32(image: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Return `make(image)`; for a float16 image, compute in float32 and round the result.

    torchvision would otherwise hold pixel coordinates in float16 too.
    """
    import torch

    return make(image.float()).to(torch.float16) if image.dtype == torch.float16 else make(image)


def flip(image: Tensor, axes: list[int]) -> Tensor:
    """Flip a tensor along some axes.

    torch 2.11 does not flip unsigned integers of more than 8 bits, so this function flips a view of
    them as signed integers of the same size.
    """
    import torch

    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    bits = signed.get(image.dtype, image.dtype)
    return image.view(bits).flip(axes).view(image.dtype)


def cut(image: Tensor, anchor: Any, shape: Any, fill: tuple[float, ...] = (0.0,)) -> Tensor:
    """Cut a window out of the last axes of a tensor.

    Args:
        image: Tensor (C, H, W), or (others..., C, space...).
        anchor: The window's first index along each spatial axis; may be negative.
        shape: The window's size along each spatial axis.
        fill: The value outside the image: one number, or one per channel. Truncated for integer
            dtypes.

    Returns:
        A view if the window lies inside the image, else a new tensor.
    """
    import torch

    axes = len(shape)
    spans = [(int(a), int(a) + int(n)) for a, n in zip(anchor, shape, strict=True)]
    sides = [high - low for low, high in spans]
    part: Any = (..., *(slice(max(low, 0), max(high, 0)) for low, high in spans))
    inside = image[part]
    if list(inside.shape[-axes:]) == sides:
        return inside
    window = image.new_empty((*image.shape[:-axes], *sides))
    filling = torch.tensor(fill, dtype=torch.float64).to(image.dtype)
    window[...] = to_device(filling, image.device).reshape(-1, *[1] * axes)
    starts = [max(-low, 0) for low, _ in spans]
    ends = [start + n for start, n in zip(starts, inside.shape[-axes:], strict=True)]
    part = (..., *map(slice, starts, ends))
    window[part] = inside
    return window


def to_steps(array: Tensor, layout: str, axes_before: int = 0) -> Tensor:
    """Return `array`, or a view, with its axes in the order of `Step.torch`: others, C, space.

    `layout` names the axes of `array` after the first `axes_before`, which stay in place. A channel
    axis is added if there is none.
    """
    if "C" not in layout:
        array, layout = array.unsqueeze(axes_before), f"C{layout}"
    if layout == canonical_layout(layout):
        return array
    order = [axes_before + layout.index(axis) for axis in canonical_layout(layout)]
    return array.permute([*range(axes_before), *order])


def from_steps(array: Tensor, layout: str, axes_before: int = 0) -> Tensor:
    """Undo `to_steps`: return `array`, or a view, with its axes in the order of `layout`.

    The channel axis is removed if `layout` has no C.
    """
    order = canonical_layout(layout)
    if "C" not in layout:
        array = array.squeeze(axes_before + order.index("C"))
        order = order.replace("C", "")
    if order == layout:
        return array
    return array.permute([*range(axes_before), *(axes_before + order.index(a) for a in layout)])
