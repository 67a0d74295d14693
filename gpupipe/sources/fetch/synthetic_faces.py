"""Draws synthetic faces for use when a data set cannot be downloaded.

They are textured JPEGs of 250x250 pixels and about LFW's file size. Decoding and augmenting them
costs about as much as LFW's photographs. They are not LFW, and every output from them says so.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from gpupipe.runtime.progress import Progress
from gpupipe.sampling import draws

Numbers = NDArray[np.float64]
SIDE = 250
_QUALITY = 85
_MARKER = ".gpupipe-stand-in.json"
_MAX_A_PERSON = 9
_GRAIN_SIDE = 640
_GRAIN_OCTAVES = ((20, 22.0), (80, 16.0), (320, 14.0))
"""(side of a noise grid in cells, strength in levels) for each octave: from soft shades to fine
grain, as in a photograph.
"""


def make(root: Path, count: int, progress: Progress) -> None:
    """Write synthetic JPEG faces; every call writes the same pixels.

    Each "person" has a folder with 1 to 9 images.

    Args:
        root: The folder to write to.
        count: Number of images.
        progress: Called with (text, done, total) after every 50 images.
    """
    grain = _make_grain()
    person, remaining = -1, 0
    for n in range(count):
        if remaining == 0:
            person += 1
            remaining = 1 + int(_draw_numbers(person, "images", 1)[0] * _MAX_A_PERSON)
            (root / f"person_{person:05d}").mkdir(parents=True)
        remaining -= 1
        name = f"person_{person:05d}"
        _draw_face(n, person, grain).save(
            root / name / f"{name}_{remaining:04d}.jpg", quality=_QUALITY
        )
        if n % 50 == 49 or n == count - 1:
            progress("making stand-in images", n + 1, count)
    (root / _MARKER).write_text(json.dumps({"stand_in_for": "lfw", "images": count}) + "\n")


def is_stand_in(root: Path) -> bool:
    """Return whether a folder holds images that `make` wrote."""
    return (root / _MARKER).is_file()


def draw_face(n: int, person: int) -> Image.Image:
    """Return image `n` of `person`, as `make` writes it, 250x250 RGB."""
    return _draw_face(n, person, _make_grain())


def _make_grain() -> Image.Image:
    """Return gray noise around 128, 640x640, from which each image crops its grain."""
    sheet = np.full((_GRAIN_SIDE, _GRAIN_SIDE), 128.0, np.float32)
    for cells, strength in _GRAIN_OCTAVES:
        noise = (
            (_draw_numbers(0, f"grain{cells}", cells * cells) * 255)
            .astype(np.uint8)
            .reshape(cells, cells)
        )
        smooth = Image.fromarray(noise).resize(sheet.shape, Image.Resampling.BICUBIC)
        sheet += strength * (np.asarray(smooth, np.float32) / 127.5 - 1.0)
    return Image.fromarray(np.clip(sheet, 0, 255).astype(np.uint8))


def _draw_face(n: int, person: int, grain: Image.Image) -> Image.Image:
    """Draw image `n` of `person`.

    Colours and proportions depend on the person; pose, background and grain on the image.
    """
    look, pose = _draw_numbers(person, "look", 12), _draw_numbers(n, "pose", 8 + 4 * 4 * 3)
    background = (60 + pose[8:] * 160).astype(np.uint8).reshape(4, 4, 3)
    image = Image.fromarray(background).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    _draw_head(ImageDraw.Draw(image), look, pose)
    image = image.filter(ImageFilter.BoxBlur(1))
    left, top = (int(p * (_GRAIN_SIDE - SIDE)) for p in pose[:2])
    part = grain.crop((left, top, left + SIDE, top + SIDE))
    return ImageChops.add(image, Image.merge("RGB", [part] * 3), offset=-128)


def _draw_head(draw: ImageDraw.ImageDraw, look: Numbers, pose: Numbers) -> None:
    skin, hair, shirt, eyes = (
        tuple(int(c) for c in 40 + 190 * look[i : i + 3]) for i in (0, 3, 6, 9)
    )
    x, y = 125 + 16 * (pose[2] - 0.5), 120 + 16 * (pose[3] - 0.5)
    wide, high = 52 + 14 * look[1], 68 + 14 * look[4]
    _ellipse(draw, x, 270, 110, 75, shirt)
    _ellipse(draw, x, y - 12, wide + 12, high + 10, hair)
    _ellipse(draw, x, y + 8, wide, high, skin)
    for side in (-1, 1):
        _ellipse(draw, x + side * wide * 0.42, y - 6, 11, 7, (240, 240, 235))
        _ellipse(draw, x + side * wide * 0.42 + 4 * (pose[4] - 0.5), y - 6, 5, 5, eyes)
    _ellipse(draw, x, y + 18, 6, 13, tuple(int(c * 0.8) for c in skin))
    _ellipse(draw, x, y + 48, 22, 4 + 9 * pose[5], (150, 60, 60))


def _ellipse(
    draw: ImageDraw.ImageDraw, x: float, y: float, wide: float, high: float, colour: tuple[int, ...]
) -> None:
    draw.ellipse((x - wide, y - high, x + wide, y + high), fill=colour)


def _draw_numbers(n: int, what: str, count: int) -> Numbers:
    row: Numbers = draws.uniform(0, 0, np.array([n]), draws.stream(what), count)[0]
    return row
