"""The data sets that gpupipe can download, and the synthetic images that replace them.

YAML keys and messages call the synthetic images "stand-in". They are textured JPEG faces of 250x250
pixels and about LFW's file size. Decoding and augmenting them costs about as much as LFW's
photographs. They are not LFW, and every output from them says so.
"""

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from gpupipe.dataset.paths import is_url, missing_folder
from gpupipe.errors import FetchError, did_you_mean
from gpupipe.runtime.files import expand_user
from gpupipe.runtime.progress import Progress, ignore_progress
from gpupipe.sampling import draws
from gpupipe.sources.helpers.download import Dataset, fetch_unlocked, hold_lock_of, make_atomically

DATASETS = {
    "lfw": Dataset(
        "lfw",
        "Labeled Faces in the Wild, 13,233 images",
        "https://ndownloader.figshare.com/files/5976018",
        "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
    )
}


def check_name(name: str) -> str:
    """Return `name` if it is the name of a data set.

    Raises:
        ValueError: No data set has this name. The message suggests the nearest one.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set '{name}'{did_you_mean(name, DATASETS)}")
    return name


def locate(
    root: Path, name: str | None, images: int | None, progress: Progress = ignore_progress
) -> Path:
    """Return the folder of a data set; if it is missing, download it or draw synthetic images.

    Synthetic images lie beside `root` under another name, so that they are never mistaken for the
    data. Once they exist, no download is tried again.

    Args:
        root: Folder of the data.
        name: Data set to download if `root` does not exist; None to download nothing.
        images: Number of synthetic images to draw if the download fails; None or 0 for none.
        progress: Called with (text, done, total).

    Raises:
        DataError: `root` does not exist and `name` is None.
        FetchError: The download fails, and `images` is None or 0.
    """
    if there := _find_root(root, images):
        return there
    if name is None or is_url(root):
        raise missing_folder(
            root,
            "data.root",
            "put the data there, or set data.root (for instance data.root=/path/to/images)",
        )
    with hold_lock_of(root, progress):
        return _find_root(root, images) or _fetch_or_draw(root, name, images, progress)


def _find_root(root: Path, images: int | None) -> Path | None:
    roots = [root, _make_stand_in_root(root, images)] if images else [root]
    return next((path for path in roots if path.is_dir()), None)


def _fetch_or_draw(root: Path, name: str, images: int | None, progress: Progress) -> Path:
    try:
        fetch_unlocked(DATASETS[name], root, progress)
        return root
    except FetchError as e:
        if not images:
            raise
        stand_in = _make_stand_in_root(root, images)
        progress(f"{e}; making a stand-in", 0, images)
        make_atomically(stand_in, lambda folder: make_stand_in(folder, images, progress))
        return stand_in


def get_default_root(name: str) -> Path:
    """Return the folder in which the built-in configs look for a data set.

    That is `$GPUPIPE_DATA/NAME`, or `~/.cache/gpupipe/NAME` if GPUPIPE_DATA is not set.
    """
    return expand_user(os.environ.get("GPUPIPE_DATA", "~/.cache/gpupipe")) / name


def describe_absence(root: Path, name: str | None, images: int | None) -> str:
    """Return a sentence saying that the first run downloads the data, or makes stand-in images.

    Return "" if the data or the stand-in images exist, or if `name` is None.
    """
    if name is None or _find_root(root, images):
        return ""
    return f"{name} is not here yet: the first run fetches it" + (
        f", or makes {images:,} stand-in images" if images else ""
    )


def explain_stand_in(used: Path, root: Path, name: str | None) -> str:
    """Return a warning if synthetic images replace a data set; "" if they do not.

    Args:
        used: The folder that is read instead of `root`, or `root` itself.
        root: The folder of the data set, as the config sets it.
        name: The data set to download; None to download nothing.
    """
    if name is None or used == root:
        return ""
    to = "" if root == get_default_root(name) else f" --root {root}"
    return (
        f"{describe_note(used)}: {name} could not be fetched, and drawn images in {used} stand "
        f"in for it. For the data itself run 'gpupipe fetch {name}{to}', or set data.root"
    )


def _make_stand_in_root(root: Path, images: int) -> Path:
    return root.with_name(f"{root.name}-stand-in-{images}")


def describe_note(root: Path) -> str:
    """Return "stand-in data, not LFW", a notice for every output, or "" for real data."""
    return "stand-in data, not LFW" if is_stand_in(root) else ""


# --- synthetic images

Numbers = NDArray[np.float64]
SIDE = 250
_QUALITY = 85
_MARKER = ".gpupipe-stand-in.json"
_MAX_A_PERSON = 9
_GRAIN_SIDE = 640
_GRAIN_OCTAVES = ((20, 22.0), (80, 16.0), (320, 14.0))
"""For each octave of the noise, from soft shades to fine grain: the side of its grid in cells, and
its strength in gray levels.
"""


def make_stand_in(root: Path, count: int, progress: Progress) -> None:
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
    """Return whether a folder holds images that `make_stand_in` wrote."""
    return (root / _MARKER).is_file()


def draw_face(n: int, person: int) -> Image.Image:
    """Return image `n` of `person`, as `make_stand_in` writes it, 250x250 RGB."""
    return _draw_face(n, person, _make_grain())


def _make_grain() -> Image.Image:
    """Return a 640x640 gray image of noise around 128. Each synthetic image adds a crop of it."""
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
