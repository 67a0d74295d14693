"""Draws a batch: its images in a grid, with their labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.measure import image_of
from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader
from gpupipe.steps.normalize import Normalize

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS, _ROWS = 8, 4
_TEXT_HEIGHT = 16
_LETTER_WIDTH = 6


def save(loader: Loader, batch: Any, path: Path) -> None:
    """Write up to 32 delivered images of a batch to a PNG or JPEG file.

    A final normalize step is undone.
    """
    from PIL import Image, ImageDraw

    images, labels = batch if isinstance(batch, tuple) else (image_of(batch), batch["label"])
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise GpupipeError(
            f"{path}: what is drawn are images, (C, H, W) with 1 or 3 channels, but samples "
            f"are {tuple(images.shape[1:])}: leave out --show"
        )
    tiles = [_tile(loader, image) for image in images[: _COLUMNS * _ROWS]]
    wide, high = max(t.width for t in tiles), max(t.height for t in tiles) + _TEXT_HEIGHT
    columns = min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * wide, rows * high + _TEXT_HEIGHT), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((4, 2), _title(loader), fill="black")
    for n, (tile, label) in enumerate(zip(tiles, labels.tolist(), strict=False)):
        left, top = n % columns * wide, n // columns * high + _TEXT_HEIGHT
        sheet.paste(tile, (left, top))
        draw.text(
            (left + 2, top + tile.height + 2),
            _name(loader, label)[: wide // _LETTER_WIDTH - 1].encode("ascii", "replace").decode(),
            fill="black",
        )
    sheet.save(path)


def _name(loader: Loader, label: int | list[float]) -> str:
    """Return the class of a label; of a soft one the two largest, with their shares."""
    classes = loader.index.classes
    if isinstance(label, int):
        return classes[label]
    largest = sorted(range(len(classes)), key=lambda n: -label[n])[:2]
    return ", ".join(f"{label[n]:.0%} {classes[n]}" for n in largest if label[n] > 0)


def _title(loader: Loader) -> str:
    note = f" ({loader.index.note})" if loader.index.note else ""
    return (
        f"{loader.config.name}{note}: pipeline {loader.config.pipeline.name}, "
        f"{loader.engine.name} on {loader.engine.device}"
    )


def _tile(loader: Loader, image: Tensor) -> Any:
    """Convert one image tensor (C, H, W) to a Pillow image."""
    from PIL import Image

    pixels = image.float().cpu()
    last = loader.config.pipeline.entries[-1].step if loader.config.pipeline.entries else None
    if isinstance(last, Normalize):
        shape = (-1, 1, 1)
        pixels = pixels * pixels.new_tensor(last.std).reshape(shape) + pixels.new_tensor(
            last.mean
        ).reshape(shape)
    if loader.config.pipeline.output_spec.dtype != "uint8":
        pixels = pixels * 255.0
    levels = pixels.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous()
    return Image.fromarray(levels.expand(-1, -1, 3).numpy())
