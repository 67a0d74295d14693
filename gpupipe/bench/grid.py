"""Draws a batch: its samples in a grid, with their labels; gpupipe.show() does it in a notebook."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.bench.annotation_drawing import USUAL_SPECS, as_dict, draw_annotations
from gpupipe.bench.measure import image_of
from gpupipe.dataset.spec import Spec
from gpupipe.errors import GpupipeError
from gpupipe.loader import Loader
from gpupipe.steps.to_dtype import Normalize

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_COLUMNS, _ROWS = 8, 4
_MAX_WIDTH = 2000
"""The largest width of the grid in pixels. A grid of wide samples has fewer columns."""
_FONT_SIZE = 16
TEXT_HEIGHT = 23
_GOLDEN_RATIO = 0.618034
"""The hue step from one class to the next, as a share of the colour wheel: neighbours differ."""
_OPACITY = 0.5
_IGNORED = 255
"""The number of pixels that belong to no class, in most data sets of masks."""


class NoImagesError(GpupipeError):
    """A batch has no images of 1 or 3 channels."""


def show(batch: Any, loader: Loader | None = None, samples: int = 16) -> Image:
    """Return a picture of a batch, which a notebook displays.

    With `loader`, the picture is the one of `gpupipe show-batch`: samples have the names of their
    classes, a final `normalize` is undone, and masks lie over their images. Without `loader`, all
    image fields are drawn side by side, with "boxes" and "keypoints", but without names. If a field
    of floats has values outside 0 to 1, its smallest value becomes black and its largest white.

    Args:
        batch: A batch of a loader: a dict, or a tuple of images and labels.
        loader: The loader that delivered the batch.
        samples: How many samples to draw at most, at least 1.

    Returns:
        The picture. `picture.save("batch.png")` writes it to a file.

    Raises:
        GpupipeError: The batch has no images of 1 or 3 channels.

    Examples:
        >>> with gpupipe.load("lfw") as loader:
        ...     batch = next(iter(loader))
        >>> gpupipe.show(batch, loader)
    """
    if loader is not None:
        return draw(loader, batch, samples)
    batch = as_dict(batch, "image", ())
    fields = _find_images(batch)
    labels = batch[1] if isinstance(batch, tuple) else batch.get("label")
    count = min(samples, *(len(images) for images in fields.values()))
    tiles = [list(map(to_picture, _list_values(images[:count]))) for images in fields.values()]
    if isinstance(batch, Mapping):
        names = [name for name in USUAL_SPECS if name in batch]
        for n, picture in enumerate(tiles[0]):
            draw_annotations(picture, {name: batch[name][n] for name in names}, USUAL_SPECS, ())
    pictures = [join(list(row)) for row in zip(*tiles, strict=True)]
    names = [""] * count if labels is None else list(map(_describe_label, labels[:count]))
    return arrange(pictures, names, ", ".join(fields))


def _find_images(batch: Any) -> dict[str, Tensor]:
    """Return the image fields of a batch, (B, C, H, W) with 1 or 3 channels, by name."""
    if isinstance(batch, tuple):
        main = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
        batch = {"image" if len(main) == 1 else f"view {n}": field for n, field in enumerate(main)}
    elif not isinstance(batch, Mapping):
        raise GpupipeError(
            f"show() draws a batch, and this is a {type(batch).__name__}: write "
            "gpupipe.show(next(iter(loader)), loader)"
        )
    annotations = tuple(USUAL_SPECS)
    images = {
        name: field
        for name, field in batch.items()
        if not name.endswith(annotations) and _holds_images(field)
    }
    if not images:
        shapes = ", ".join(
            f"'{name}' is {tuple(getattr(field, 'shape', (len(field),)))}"
            for name, field in batch.items()
        )
        raise GpupipeError(
            f"what is drawn are images, (B, C, H, W) with 1 or 3 channels, but {shapes}"
        )
    return images


def _holds_images(field: Any) -> bool:
    """Return whether a field is (B, C, H, W), or a list of (C, H, W), with 1 or 3 channels."""
    shape: Any = getattr(field[0] if len(field) else field, "shape", ())
    return len(shape) == 3 and shape[0] in (1, 3) and (isinstance(field, list) or field.ndim == 4)


def _list_values(images: Any) -> list[Tensor]:
    """Return the values of each image, from 0 to 255; of images of any size, each by itself."""
    if isinstance(images, list):
        return [to_values(image) for image in images]
    return list(to_values(images))


def _describe_label(label: Tensor) -> str:
    """Return a label's class number as text; for a soft label, the class with the largest share."""
    return str(int(label if label.ndim == 0 else label.argmax()))


def save(loader: Loader, batch: Any, path: Path) -> None:
    """Write up to 32 delivered samples of a batch to a PNG or JPEG file."""
    draw(loader, batch, _COLUMNS * _ROWS).save(path)


def draw(loader: Loader, batch: Any, samples: int) -> Image:
    """Return a picture of up to `samples` samples of a batch.

    A final normalize step is undone. Boxes have the names of their classes. Points are dots, with
    lines between them if the source knows the skeleton.
    Views are side by side. After each image comes a copy for each mask, with the mask laid over it
    in one colour per class; class 0 is transparent.

    Raises:
        NoImagesError: The samples are no images.
    """
    batch = as_dict(batch, loader.config.pipeline.main, loader.index.classes)
    fields = _list_fields(loader, batch)
    labels = batch[1] if isinstance(batch, tuple) else batch.get("label")
    count = min(samples, *(len(images) for images in fields.values()))
    pictures = [join(_draw_sample(loader, fields, batch, n)) for n in range(count)]
    names = [""] * count
    if labels is not None:
        names = [_name_class(loader, label) for label in labels[:count].tolist()]
    note = f" ({loader.index.note})" if loader.index.note else ""
    title = (
        f"{loader.config.name}{note}: pipeline {loader.config.pipeline.name}, "
        f"{loader.engine.name} on {loader.engine.device}"
    )
    return arrange(pictures, names, title)


def arrange(samples: list[Image], names: list[str], title: str) -> Image:
    """Arrange pictures in rows and columns below a title, each with its name below it."""
    from PIL import Image, ImageDraw, ImageFont

    wide, high = max(t.width for t in samples), max(t.height for t in samples) + TEXT_HEIGHT
    columns = max(1, min(_COLUMNS, len(samples), _MAX_WIDTH // wide))
    rows = -(-len(samples) // columns)
    sheet = Image.new("RGB", (columns * wide, rows * high + TEXT_HEIGHT), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_FONT_SIZE)
    pen.text((4, 2), _fit(title, sheet.width - 4, font), fill="black", font=font)
    for n, (picture, name) in enumerate(zip(samples, names, strict=True)):
        left, top = n % columns * wide, n // columns * high + TEXT_HEIGHT
        sheet.paste(picture, (left, top))
        text = _fit(name.encode("ascii", "replace").decode(), wide - 4, font)
        pen.text((left + 2, top + picture.height + 2), text, fill="black", font=font)
    return sheet


def _fit(text: str, width: int, font: Any) -> str:
    """Return the longest prefix of a text that is at most `width` pixels wide."""
    while text and font.getlength(text) > width:
        text = text[:-1]
    return text


def _list_fields(loader: Loader, batch: Any) -> dict[str, Tensor]:
    """Return the fields that are drawn as images, by name: the main field or its views."""
    names = loader.config.pipeline.main_outputs
    if isinstance(batch, tuple):
        main = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
        fields = dict(zip(names, main, strict=True))
    elif names[0] in batch:
        fields = {name: batch[name] for name in names}
    else:  # a batch of a server
        fields = {names[0]: image_of(batch)}
    for name, images in fields.items():
        shape = tuple(images[0].shape)
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise NoImagesError(
                f"what is drawn are images, (C, H, W) with 1 or 3 channels, but the samples of "
                f"'{name}' are {shape}"
            )
    return fields


def _draw_sample(loader: Loader, fields: dict[str, Tensor], batch: Any, n: int) -> list[Image]:
    """Draw sample `n` of a batch: each image, followed by a copy with each mask laid over it."""
    pictures = []
    specs = {} if isinstance(batch, tuple) else loader.config.pipeline.fields
    masks = [batch[name] for name, spec in specs.items() if spec.kind == "mask" and name in batch]
    for name, images in fields.items():
        picture = _draw_image(loader, name, images[n])
        if isinstance(batch, Mapping):
            rows, specs = _list_rows(loader, name, batch, n)
            skeleton = loader.index.extra.get("skeleton", ())
            draw_annotations(picture, rows, specs, loader.index.classes, skeleton)
        matching = [mask[n] for mask in masks if mask[n].shape[-2:] == images[n].shape[-2:]]
        pictures += [picture, *(_lay_over(picture, mask) for mask in matching)]
    return pictures


def _list_rows(
    loader: Loader, output: str, batch: Mapping[str, Any], n: int
) -> tuple[dict[str, Tensor], dict[str, Spec]]:
    """Return the rows of sample `n` on an image or view, by field of annotations, and their specs.

    A view has annotations of its own, with the view's name before theirs.
    """
    pipeline = loader.config.pipeline
    specs = pipeline.annotations_of(output)
    prefix = f"{output}_" if output in pipeline.views else ""
    return {name: batch[prefix + name][n] for name in specs if prefix + name in batch}, specs


def join(tiles: list[Image]) -> Image:
    """Join pictures side by side into one."""
    from PIL import Image

    if len(tiles) == 1:
        return tiles[0]
    size = sum(tile.width for tile in tiles), max(tile.height for tile in tiles)
    row = Image.new("RGB", size, "white")
    left = 0
    for tile in tiles:
        row.paste(tile, (left, 0))
        left += tile.width
    return row


def _lay_over(picture: Image, mask: Tensor) -> Image:
    """Lay a mask of class numbers, (1, H, W), over a picture.

    Class 0 is transparent, and 255, pixels that do not count, is white.
    """
    import numpy as np
    from PIL import Image

    classes = mask.cpu().reshape(mask.shape[-2:]).numpy().astype(np.int64)
    pixels = np.asarray(picture).astype(np.float64)
    for number in np.unique(classes[classes != 0]):
        # By its hue, 255 would look like class 1.
        saturation = 0 if number == _IGNORED else 1
        hue = float(number) * _GOLDEN_RATIO % 1
        color = 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, 1))
        inside = classes == number
        pixels[inside] = pixels[inside] * (1 - _OPACITY) + color * _OPACITY
    return Image.fromarray(pixels.astype(np.uint8))


def _name_class(loader: Loader, label: int | list[float]) -> str:
    """Return a label's class name; of a soft label, the top two, as "60% cat, 40% dog"."""
    classes = loader.index.classes
    if isinstance(label, int):
        return classes[label]
    largest = sorted(range(len(classes)), key=lambda n: -label[n])[:2]
    return ", ".join(f"{label[n]:.0%} {classes[n]}" for n in largest if label[n] > 0)


def _draw_image(loader: Loader, name: str, image: Tensor) -> Image:
    """Draw an image (C, H, W) of the field `name`, after undoing a final normalize step."""
    pixels, pipeline = image.float().cpu(), loader.config.pipeline
    steps = pipeline.entries_on(name) or pipeline.entries
    if steps and isinstance(last := steps[-1].step, Normalize):
        mean, std = (pixels.new_tensor(values)[:, None, None] for values in (last.mean, last.std))
        pixels = pixels * std + mean
    return to_picture(pixels if pipeline.output_spec.dtype == "uint8" else pixels * 255.0)


def to_picture(values: Tensor) -> Image:
    """Convert an image (C, H, W) of 1 or 3 channels, with values from 0 to 255, to a picture."""
    from PIL import Image

    pixels = values.round().clamp(0, 255).byte().permute(1, 2, 0)
    return Image.fromarray(pixels.expand(-1, -1, 3).contiguous().numpy())


def to_values(images: Tensor) -> Tensor:
    """Convert the values of images to float64 on the CPU, and scale floats to 0 to 255.

    Integers keep their values. Floats from 0 to 1 are multiplied by 255. If any float is outside 0
    to 1, the range from the smallest to the largest value of all images is mapped to 0 to 255.
    """
    pixels = images.cpu().double()
    if images.dtype.is_floating_point:
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            pixels = (pixels - low) / max(high - low, 1e-9)
        pixels = pixels * 255
    return pixels
