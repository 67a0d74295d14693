"""JPEG files for the decoders: windows of photographs of many sizes and kinds, and odd files."""

import io
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import photos
from PIL import Image

_SUBSAMPLING = ("4:4:4", "4:2:2", "4:2:0")
_QUALITIES = (75, 90, 96)
_ORIENTATION = 0x0112
KINDS = (*_SUBSAMPLING, "progressive", "gray")


@dataclass(frozen=True)
class _Window:
    """A window of the photograph `path`, to be saved as `kind`."""

    path: Path
    box: tuple[int, int, int, int]
    size: tuple[int, int]
    kind: str
    quality: int


def mixture(root: Path, photographs: list[Path], count: int) -> list[tuple[Path, str]]:
    """`count` JPEGs, 64 to 900 pixels wide, and the kind of each; made once, on all cores.

    Seven of ten are baseline colour images of three kinds of chroma, the rest is progressive
    (all three) and gray.
    """
    target = root / f"mixture-{count}"
    files = [target / f"{n:05d}.jpg" for n in range(count)]
    windows = _windows(photographs, count)
    if not target.exists():
        making = target.with_name(f"{target.name}.{os.getpid()}")
        making.mkdir(parents=True)
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            names = [making / file.name for file in files]
            for _ in pool.map(_save, windows, names, chunksize=16):
                pass
        making.rename(target)
    return [(file, window.kind) for file, window in zip(files, windows, strict=True)]


def _windows(photographs: list[Path], count: int) -> list[_Window]:
    rng = np.random.default_rng(0)
    sizes = [photos.size_of(p) for p in photographs]
    found = []
    for n in range(count):
        wide, high = sizes[n % len(sizes)]
        width, height = (int(rng.integers(64, min(900, most) + 1)) for most in (wide, high))
        left, top = int(rng.integers(0, wide - width + 1)), int(rng.integers(0, high - height + 1))
        kind = {7: "progressive", 8: "progressive", 9: "gray"}.get(n % 10, _SUBSAMPLING[n % 3])
        box = (left, top, left + width, top + height)
        quality = _QUALITIES[n // 3 % 3]
        found.append(_Window(photographs[n % len(sizes)], box, (width, height), kind, quality))
    return found


def _save(window: _Window, file: Path) -> None:
    with Image.open(window.path) as opened:
        image = opened.crop(window.box).convert("L" if window.kind == "gray" else "RGB")
    file.write_bytes(encoded(image, window.kind, window.quality, chroma=window.size[0] % 3))


def encoded(
    image: Image.Image, kind: str, quality: int = 90, chroma: int = 2, **more: Any
) -> bytes:
    """A JPEG of one of KINDS. chroma: of a progressive one, 0 (4:4:4) to 2 (4:2:0)."""
    options: dict[str, Any] = {"quality": quality} | more
    if kind != "gray" and image.mode == "RGB":
        options["subsampling"] = _SUBSAMPLING.index(kind) if kind in _SUBSAMPLING else chroma
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", progressive=kind == "progressive", **options)
    return buffer.getvalue()


def oddities(folder: Path, photograph: Path) -> dict[str, Path]:
    """One photograph, 480x360, as files that decoders treat differently, by name."""
    with Image.open(photograph) as opened:
        image = opened.convert("RGB").resize((480, 360))
    made: dict[str, Callable[[], bytes]] = {
        "progressive": lambda: encoded(image, "progressive"),
        "gray": lambda: encoded(image.convert("L"), "gray"),
        "CMYK": lambda: encoded(image.convert("CMYK"), "4:4:4"),
        "restart markers": lambda: encoded(image, "4:2:0", restart_marker_rows=1),
    }
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[_ORIENTATION] = orientation
        made[f"EXIF {orientation}"] = lambda exif=exif: encoded(image, "4:2:0", exif=exif)
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name.replace(' ', '-')}.jpg" for name in made}
    for name, file in files.items():
        file.write_bytes(made[name]())
    return files
