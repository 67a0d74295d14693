"""gpupipe.show(): a picture of a batch in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpupipe.errors import GpupipeError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from gpupipe.loader import Loader

_LEVELS = 255


def show(batch: Any, loader: Loader | None = None, samples: int = 16) -> Image:
    """Return a picture of a batch, which a notebook displays.

    With the loader it is that of `gpupipe show-batch`: samples have the names of their classes,
    a final `normalize` is undone, and masks lie over their images. Without it, every field of
    images is drawn beside the others, and numbers outside 0 to 1 are stretched to black and white.

    Args:
        batch: A batch of a loader: a dict, or a tuple of images and labels.
        loader: The loader that delivered it.
        samples: The most samples to draw, at least 1.

    Returns:
        The picture. `picture.save("batch.png")` writes it to a file.

    Raises:
        GpupipeError: The batch has no images of 1 or 3 channels.

    Example:
        >>> with gpupipe.load("lfw") as loader:
        ...     batch = next(iter(loader))
        >>> gpupipe.show(batch, loader)
    """
    from gpupipe.bench import grid

    if loader is not None:
        return grid.draw(loader, batch, samples)
    fields = _find_images(batch)
    labels = batch[1] if isinstance(batch, tuple) else batch.get("label")
    count = min(samples, *(len(images) for images in fields.values()))
    tiles = {name: _to_pictures(images[:count]) for name, images in fields.items()}
    pictures = [grid.join(list(row)) for row in zip(*tiles.values(), strict=True)]
    names = [""] * count if labels is None else [_describe(label) for label in labels[:count]]
    return grid.arrange(pictures, names, ", ".join(fields))


def _find_images(batch: Any) -> dict[str, Tensor]:
    """Return the fields of images by name."""
    if isinstance(batch, tuple):
        main = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
        batch = {"image" if len(main) == 1 else f"view {n}": field for n, field in enumerate(main)}
    elif not isinstance(batch, Mapping):
        raise GpupipeError(
            f"show() draws a batch, and this is a {type(batch).__name__}: write "
            "gpupipe.show(next(iter(loader)), loader)"
        )
    images = {name: f for name, f in batch.items() if f.ndim == 4 and f.shape[1] in (1, 3)}
    if not images:
        shapes = ", ".join(f"'{name}' is {tuple(field.shape)}" for name, field in batch.items())
        raise GpupipeError(
            f"what is drawn are images, (B, C, H, W) with 1 or 3 channels, but {shapes}"
        )
    return images


def _to_pictures(images: Tensor) -> list[Image]:
    """Convert images (B, C, H, W) to pictures; all are stretched alike."""
    from PIL import Image

    pixels = images.float().cpu()
    if images.dtype.is_floating_point:
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            pixels = (pixels - low) / max(high - low, 1e-12)
        pixels = pixels * _LEVELS
    levels = pixels.round().clamp(0, _LEVELS).byte().permute(0, 2, 3, 1)
    return [Image.fromarray(each.expand(-1, -1, 3).contiguous().numpy()) for each in levels]


def _describe(label: Tensor) -> str:
    """Return a label as text; the largest of a soft one."""
    return str(int(label if label.ndim == 0 else label.argmax()))
