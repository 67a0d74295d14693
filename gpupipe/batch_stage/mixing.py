"""What the steps share: each sample is mixed with the one before it in its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def mix_with_previous(x: Tensor, share: float) -> Tensor:
    """Return `share` of each sample plus 1 - `share` of the sample before it.

    That is `share * x + (1 - share) * x.roll(1, 0)`, as torchvision's MixUp computes it: the sample
    before the first is the last. The rolled batch is never made, which takes a third of the memory
    traffic. A batch of one sample stays as it is, to the bit.

    Args:
        x: Floats (B, ...).
        share: 0 to 1.
    """
    import torch

    mixed = torch.empty_like(x)
    torch.lerp(x[-1:], x[:1], share, out=mixed[:1])
    if len(x) > 1:
        torch.lerp(x[:-1], x[1:], share, out=mixed[1:])
    return mixed


def paste_from_previous(x: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Return a copy in which a box of each sample is that of the sample before it.

    Args:
        x: (B, ..., H, W), of any dtype.
        box: (left, top, right, bottom) in pixels; the last two are outside.
    """
    left, top, right, bottom = box
    mixed = x.clone()
    mixed[:1, ..., top:bottom, left:right] = x[-1:, ..., top:bottom, left:right]
    mixed[1:, ..., top:bottom, left:right] = x[:-1, ..., top:bottom, left:right]
    return mixed
