"""JPEG sets for the benchmarks, cut from real photographs (never from ramps or noise: a decoder's
cost depends on the content).
"""

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from helpers.photographs import find_or_write

Box = tuple[int, int, int, int]


def photographs() -> list[Path]:
    """Return the real photographs: those of GPUPIPE_PHOTOS, else those that tests cut.

    Raises:
        FileNotFoundError: There are none; says what to set or to install.
    """
    if folder := os.environ.get("GPUPIPE_PHOTOS"):
        return _list_photographs(Path(folder))
    try:
        return _list_photographs(find_or_write() / "photos")
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error}: install scikit-learn and scikit-image, or set GPUPIPE_PHOTOS to a folder "
            "with JPEGs in a folder a class"
        ) from error


def _list_photographs(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*/*.jpg"))
    if not files:
        raise FileNotFoundError(
            f"no photographs under {folder}: set GPUPIPE_PHOTOS to a folder with JPEGs in a "
            "folder a class"
        )
    return files


def crops(root: Path, count: int, size: tuple[int, int], quality: int, seed: int = 0) -> Path:
    """`count` JPEGs of `size` (width, height), random windows of the photographs, a folder for
    every ten; made once, on all cores.
    """
    target = root / f"crops-{count}-{size[0]}x{size[1]}-q{quality}"
    if target.exists():
        return target
    making = target.with_name(f"{target.name}.{os.getpid()}")
    rng = np.random.default_rng(seed)
    photos = photographs()
    boxes = [_window(size_of(photos[n % len(photos)]), size, rng) for n in range(count)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [
            pool.submit(_cut, photo, making, size, quality, boxes[k :: len(photos)], k, len(photos))
            for k, photo in enumerate(photos)
        ]
        for job in jobs:
            job.result()
    making.rename(target)
    return target


def _cut(
    path: Path,
    root: Path,
    size: tuple[int, int],
    quality: int,
    boxes: list[Box],
    first: int,
    step: int,
) -> None:
    """The windows `boxes` of one photograph, as the files number `first`, `first + step` and so
    on.
    """
    with Image.open(path) as opened:
        photo = opened.convert("RGB")
    for n, box in enumerate(boxes):
        photo.resize(size, Image.Resampling.BICUBIC, box=box).save(
            _name(root, first + n * step), quality=quality
        )


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a photograph."""
    with Image.open(path) as opened:
        return opened.size


def _name(root: Path, n: int) -> Path:
    folder = root / f"class_{n // 10:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{n:06d}.jpg"


def _window(photo: tuple[int, int], size: tuple[int, int], rng: np.random.Generator) -> Box:
    """A window of a photograph of size `photo` with the aspect ratio of `size`, as large as 40 to
    100 % of what fits.
    """
    fit = min(photo[0] / size[0], photo[1] / size[1])
    width, height = (round(s * fit * rng.uniform(0.4, 1.0)) for s in size)
    height = min(photo[1], round(width * size[1] / size[0]))
    left, top = rng.integers(0, photo[0] - width + 1), rng.integers(0, photo[1] - height + 1)
    return int(left), int(top), int(left) + width, int(top) + height


def lfw_like(root: Path, count: int = 5000) -> Path:
    """250x250 JPEGs of about 14 KB: the size of Labeled Faces in the Wild."""
    return crops(root, count, (250, 250), quality=80)


def imagenet_like(root: Path, count: int = 1000) -> Path:
    """500x375 JPEGs of about 100 KB: the typical ImageNet file."""
    return crops(root, count, (500, 375), quality=96)


def drawn(root: Path, count: int) -> Path:
    """`count` of gpupipe's drawn 250x250 images, for machines without photographs; made once."""
    from gpupipe.dataset import source
    from gpupipe.sources.helpers.dataset_catalog import make_stand_in

    target = root / f"drawn-{count}"
    if not target.exists():
        making = target.with_name(f"{target.name}.{os.getpid()}")
        make_stand_in(making, count, source.ignore_progress)
        making.rename(target)
    return target


def copied(root: Path, copies: int) -> Path:
    """The set `root` with every file under several names (hard links): a larger set to all but the
    page cache; made once.
    """
    target = root.with_name(f"{root.name}-x{copies}")
    if target.exists():
        return target
    making = target.with_name(f"{target.name}.{os.getpid()}")
    for file in root.glob("*/*.jpg"):
        folder = making / file.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for n in range(copies):
            os.link(file, folder / f"{file.stem}_{n}.jpg")
    making.rename(target)
    return target
