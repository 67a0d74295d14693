"""Real photographs for tests, cut out of those that scikit-learn and scikit-image ship.

`photos/CLASS/*.jpg` has 47 photographs of different sizes, in all kinds of JPEG that cameras and
web sites write; `orientation/*.jpg` has one photograph in each EXIF orientation. They are written
once, to a folder of the user's cache that is named by the content of this file.
"""

import hashlib
import importlib.util
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import PIL
from PIL import Image

SHIPPED = {
    "sklearn": ("datasets/images/china.jpg", "datasets/images/flower.jpg"),
    "skimage": ("data/astronaut.png", "data/chelsea.png", "data/coffee.png"),
}
CLASSES = (
    *("100", "113", "134", "182", "241", "312", "362", "372", "414", "425"),
    *("450", "510", "641", "695", "704", "721", "755", "814", "84"),
)
COUNT = 47
WIDTHS = (320, 400, 480, 640, 640, 640, 960, 1280)
SUBSAMPLINGS = ("4:2:0", "4:2:0", "4:2:0", "4:2:2", "4:4:4")


def find_or_write() -> Path:
    """Return the folder that holds `photos` and `orientation`.

    Raises:
        FileNotFoundError: A package that ships the originals is not installed.
    """
    content = Path(__file__).read_bytes() + PIL.__version__.encode()
    folder = _cache() / f"photographs-{hashlib.sha256(content).hexdigest()[:16]}"
    if not folder.is_dir():
        _write_at_once(folder)
    return folder


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gpupipe-tests"


def _write_at_once(folder: Path) -> None:
    """Write all files beside the folder, then rename: other processes do the same meanwhile."""
    originals = [Image.open(path).convert("RGB") for path in _originals()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    _write_photos(made / "photos", originals)
    _write_orientations(made / "orientation", originals[0])
    try:
        made.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(made)


def _originals() -> list[Path]:
    paths = []
    for package, names in SHIPPED.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise FileNotFoundError(f"the package {package} is not installed")
        paths += [Path(spec.origin).parent / name for name in names]
    return paths


def _write_photos(folder: Path, originals: list[Image.Image]) -> None:
    draw = random.Random(0)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for n in range(COUNT):
        photo = _cut(originals[n % len(originals)], draw)
        path = folder / CLASSES[n % len(CLASSES)] / f"photo_{n:02}.jpg"
        photo.save(path, **_jpeg_options(n, draw))


def _cut(original: Image.Image, draw: random.Random) -> Image.Image:
    """A window of the original, resized to one of the usual widths."""
    width = draw.randint(original.width // 2, original.width)
    height = draw.randint(original.height // 2, original.height)
    left, top = draw.randint(0, original.width - width), draw.randint(0, original.height - height)
    window = original.crop((left, top, left + width, top + height))
    new_width = draw.choice(WIDTHS)
    new_size = new_width, max(240, round(new_width * height / width))
    return window.resize(new_size, Image.Resampling.LANCZOS)


def _jpeg_options(n: int, draw: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {
        "quality": draw.randint(75, 95),
        "subsampling": draw.choice(SUBSAMPLINGS),
        "progressive": n % 5 == 2,
        "optimize": n % 3 == 1,
    }
    if n % 7 == 3:
        options["restart_marker_rows"] = 1
    return options


def _write_orientations(folder: Path, original: Image.Image) -> None:
    """The same stored pixels with each orientation, with other EXIF data, and without any."""
    folder.mkdir()
    photo = original.resize((640, 426))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        photo.save(folder / f"orientation_{orientation}.jpg", quality=90, exif=exif)
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    photo.save(folder / "no_orientation.jpg", quality=90, exif=exif)
    photo.save(folder / "no_exif.jpg", quality=90)
