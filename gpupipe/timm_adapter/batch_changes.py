"""What timm does to whole batches: mixing, its RandomErasing, and the dtype of the images."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpupipe.errors import ConfigError, Problem

if TYPE_CHECKING:
    from torch import Tensor

Batch = tuple[Any, Any]


class CollateMixup:
    """Mixes a batch with timm's FastCollateMixup, on the device of the batch.

    timm mixes uint8 images. Mixing is linear, so that normalized ones give the same, without the
    rounding to whole levels.

    Attributes:
        mixup: The FastCollateMixup.
    """

    def __init__(self, mixup: Any) -> None:
        self.mixup = mixup

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        from timm.data.mixup import Mixup

        # FastCollateMixup.__call__ collates samples; that of its base class mixes a batch.
        mixed: Batch = Mixup.__call__(self.mixup, images, labels)
        return mixed


class Erase:
    """Runs timm's RandomErasing on a batch, with random numbers of torch and Python."""

    def __init__(self, p: float, mode: str, count: int, num_splits: int) -> None:
        self._arguments = {
            "probability": p,
            "mode": mode,
            "max_count": count,
            "num_splits": num_splits,
        }

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        from timm.data.random_erasing import RandomErasing

        return RandomErasing(**self._arguments, device=images.device)(images), labels


class Cast:
    """Changes the dtype of the images."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        return images.to(self._dtype), labels


def read_collate_function(collate_fn: Callable[..., Any] | None) -> list[CollateMixup]:
    """Return what a `collate_fn` of timm does to a batch.

    Raises:
        ConfigError: If it is none of timm's.
    """
    if collate_fn is None:
        return []
    from timm.data.loader import fast_collate
    from timm.data.mixup import FastCollateMixup

    if isinstance(collate_fn, FastCollateMixup):
        return [CollateMixup(collate_fn)]
    if collate_fn is fast_collate:
        return []
    name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
    advice = "batches are made by the engine: write None, or timm's FastCollateMixup"
    raise ConfigError([Problem("gpupipe.timm.create_loader", f"collate_fn is {name}: {advice}")])
