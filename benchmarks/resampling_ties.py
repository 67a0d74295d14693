"""How far resampling differs from torchvision's where it cannot be equal: nearest pixels whose
coordinate is halfway between two, and DALI's bicubic when it enlarges.

    # about 2 minutes; writes benchmarks/results/resampling_ties.json
    python benchmarks/resampling_ties.py
    python benchmarks/resampling_ties.py --quick  # a check that it runs

The reference is torchvision's functions on the same draws, which `engine: dataloader` runs. Images
for nearest are noise, so that a pixel from another place is another value.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import photos
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate

import gpupipe

_ENGINES = ("cpu", "dali")
_SIZES = {(250, 250): 64, (17, 23): 4000}
"""Noise images of each height and width: a few million pixels."""
_NEAREST: dict[str, dict[str, Any]] = {
    "random_rotation, degrees: 180": {"random_rotation": {"degrees": 180}},
    "random_rotation, degrees: [30, 30]": {"random_rotation": {"degrees": [30, 30]}},
    "random_perspective, p: 1": {"random_perspective": {"p": 1.0, "interpolation": "nearest"}},
    "random_affine, scale: [2, 2]": {"random_affine": {"degrees": 0, "scale": [2, 2]}},
}
_SIDE = 600
_BORDER = 8
"""Pixels at the border that are left out of the comparison with float32: filters differ there."""


def main() -> None:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--photographs", 32, "how many are resized with bicubic")
    arguments = harness.parsed(parser, photographs=2)
    harness.prepare(arguments)
    nearest = [result for size in _SIZES for result in compare_nearest(size, arguments)]
    files = photos.photographs()[: arguments.photographs]
    noise = sorted(write_noise(arguments.data, (250, 250), 4).glob("*/*.png"))
    bicubic = {
        name: compare_bicubic(name, images, arguments.data)
        for name, images in {"photographs": files, "noise of 250x250": noise}.items()
    }
    path = harness.write("resampling_ties", {"nearest": nearest, "bicubic": bicubic}, arguments)
    for result in nearest:
        shares = ", ".join(f"{e} {share:.4f} %" for e, share in result["percent"].items())
        print(f"{result['size']}: {result['step']}: {shares}")
    for name, levels in bicubic.items():
        print(f"bicubic, {name}: {levels}")
    print(f"written to {path}")


def compare_nearest(
    size: tuple[int, int], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield, for each step, the share of the pixels of noise that are not torchvision's."""
    count = 40 if arguments.quick else _SIZES[size]
    root = write_noise(arguments.data, size, count)
    for name, step in _NEAREST.items():
        expected = load_pixels(root, step, "dataloader")
        differs = {
            engine: (load_pixels(root, step, engine) != expected).any(axis=1) for engine in _ENGINES
        }
        harness.say(f"{size}: {name}")
        yield {
            "size": f"{size[0]}x{size[1]}",
            "step": name,
            "pixels": count * size[0] * size[1],
            "percent": {engine: 100 * float(where.mean()) for engine, where in differs.items()},
        }


def write_noise(root: Path, size: tuple[int, int], count: int) -> Path:
    """Write PNG images of noise to a folder, once, and return it."""
    folder = root / f"noise-{count}-{size[0]}x{size[1]}"
    rng = np.random.default_rng(0)
    (folder / "noise").mkdir(parents=True, exist_ok=True)
    for n in range(count):
        pixels = rng.integers(0, 256, (*size, 3), np.uint8)
        if not (path := folder / "noise" / f"{n:05}.png").exists():
            Image.fromarray(pixels).save(path, compress_level=0)
    return folder


def load_pixels(root: Path, step: dict[str, Any], engine: str) -> NDArray[np.uint8]:
    """Return the images of epoch 0, (N, C, H, W), in the order of their ids."""
    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode", step]}
    with gpupipe.load(config, engine=engine, device="cpu", ids=True, batch_size=16) as loader:
        batches = [(batch["id"].numpy().copy(), batch["image"].numpy().copy()) for batch in loader]
    ids = np.concatenate([ids for ids, _ in batches])
    images: NDArray[np.uint8] = np.concatenate([images for _, images in batches])
    return images[np.argsort(ids)]


def compare_bicubic(name: str, files: list[Path], data: Path) -> dict[str, Any]:
    """Return the differences, in levels, of DALI's bicubic from torchvision's over some images."""
    root = data / f"ties-{name.partition(' ')[0]}-{len(files)}"
    (root / "images").mkdir(parents=True, exist_ok=True)
    for n, file in enumerate(files):
        (root / "images" / f"{n:03}{file.suffix}").write_bytes(file.read_bytes())
    resize = {"resize": {"size": _SIDE, "interpolation": "bicubic"}}
    decoded = load_each(root, ["decode"], "dali")
    dali, expected, cpu = (
        load_each(root, ["decode", resize], engine) for engine in ("dali", "dataloader", "cpu")
    )
    is_larger = [min(image.shape[1:]) < _SIDE for image in decoded]
    levels = [difference(a, b) for a, b in zip(dali, expected, strict=True)]
    in_float = [inner(resample(a), b) for a, b in zip(decoded, dali, strict=True)]
    return {
        "images": len(files),
        "enlarged": sum(is_larger),
        "dali": summarize(levels),
        "dali, enlarged": summarize(select(levels, is_larger)),
        "dali, reduced": summarize(select(levels, [not larger for larger in is_larger])),
        "cpu": summarize([difference(a, b) for a, b in zip(cpu, expected, strict=True)]),
        "dali, of torch in float32, away from the border": summarize(in_float),
    }


def load_each(root: Path, pipeline: list[Any], engine: str) -> list[NDArray[np.uint8]]:
    """Return the images of a folder, each (C, H, W), in the order of their ids."""
    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": pipeline}
    with gpupipe.load(config, engine=engine, device="cpu", ids=True, batch_size=1) as loader:
        images = {int(batch["id"]): batch["image"][0].numpy().copy() for batch in loader}
    return [images[id] for id in sorted(images)]


def resample(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Resize with torch's bicubic in float32, cut off at 0 and 255 once, after both passes."""
    height, width = image.shape[1:]
    short = min(height, width)
    size = [_SIDE * height // short, _SIDE * width // short]
    floats = torch.from_numpy(image)[None].float()
    resized = interpolate(floats, size, mode="bicubic", antialias=True, align_corners=False)
    values: NDArray[np.float32] = resized[0].clamp(0, 255).numpy()
    return values


def inner(expected: NDArray[Any], image: NDArray[Any]) -> NDArray[np.float64]:
    """Return the differences of two images, in levels, without those at the border."""
    inside = (slice(None), slice(_BORDER, -_BORDER), slice(_BORDER, -_BORDER))
    return difference(expected[inside], image[inside])


def difference(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    levels: NDArray[np.float64] = np.abs(a.astype(np.float64) - b)
    return levels


def select(levels: list[NDArray[np.float64]], which: list[bool]) -> list[NDArray[np.float64]]:
    return [image for image, is_selected in zip(levels, which, strict=True) if is_selected]


def summarize(levels: list[NDArray[np.float64]]) -> dict[str, float] | None:
    """Return the mean of the images' mean differences, and the largest of all pixels."""
    if not levels:
        return None
    means = [float(image.mean()) for image in levels]
    return {"mean": float(np.mean(means)), "max": max(float(image.max()) for image in levels)}


if __name__ == "__main__":
    main()
