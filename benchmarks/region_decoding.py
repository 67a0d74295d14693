"""Decoding of whole JPEGs and of windows on one core: gpupipe._jpeg against simplejpeg and
torchvision.

    python benchmarks/region_decoding.py  # a minute; writes benchmarks/results/region_decoding.json
    python benchmarks/region_decoding.py --quick  # a check that it runs

Answers: milliseconds of CPU time an image, medians of interleaved rounds on one thread. The windows
are those of torchvision's RandomResizedCrop, and the one that resize to 256 and center_crop to 224
reads. "read down to the last row" is the price of reading the codes below the window, in place of
looking for the end marker. Images are cut from real photographs (benchmarks/photos.py).
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import numpy as np
import photos
from numpy.typing import NDArray

Window = tuple[int, int, int, int]
_RESIZED, _CROP, _MARGIN = 256, 224, 4


def main() -> None:
    parser = harness.contest(__doc__, rounds=7, seconds=0.0)
    harness.add_number(parser, "--images", 200, "of each set")
    arguments = harness.parsed(parser, images=20)
    harness.prepare(arguments)
    result = {
        "imagenet": measure(photos.imagenet_like(arguments.data, 1000), arguments),
        "lfw": measure(photos.lfw_like(arguments.data, 5000), arguments),
    }
    path = harness.write("region_decoding", {"milliseconds": result}, arguments)
    for name, row in result.items():
        print(name, "; ".join(f"{contestant}: {ms:.3f}" for contestant, ms in row.items()))
    print(f"written to {path}")


def measure(root: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Return the milliseconds an image of each contestant."""
    files = sorted(root.glob("*/*.jpg"))[: arguments.images]
    every = contestants([np.fromfile(file, np.uint8) for file in files])
    took: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(arguments.rounds):
        for name, run in every.items():
            started = time.thread_time()
            run()
            took[name].append((time.thread_time() - started) / len(files) * 1000)
    return {name: round(statistics.median(times), 4) for name, times in took.items()}


def contestants(files: Sequence[NDArray[np.uint8]]) -> dict[str, Callable[[], None]]:
    """Return functions that decode all files, by name. The files have one size."""
    import simplejpeg
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    from gpupipe.runtime.installation import find_extension

    extension = find_extension("_jpeg")
    if extension is None:
        raise SystemExit("gpupipe._jpeg is not built or is off: gpupipe doctor says what to do")
    torch.set_num_threads(1)
    height, width = simplejpeg.decode_jpeg_header(files[0])[:2]
    pixels = np.empty((height, width, 3), np.uint8)
    exact = {"fastdct": False, "fastupsample": False, "buffer": pixels}
    random, centre = random_windows(height, width, len(files)), centre_window(height, width)
    down = [(top, left, height - top, columns) for top, left, _, columns in random]

    def with_windows(windows: Sequence[Window]) -> Callable[[], None]:
        def run() -> None:
            for data, window in zip(files, windows, strict=True):
                assert extension.decode(data, pixels, *window)

        return run

    def with_simplejpeg() -> None:
        for data in files:
            simplejpeg.decode_jpeg(data, "RGB", **exact)

    def with_torchvision() -> None:
        for data in files:
            decode_jpeg(torch.from_numpy(data), ImageReadMode.RGB)

    return {
        "whole, simplejpeg": with_simplejpeg,
        "whole, torchvision": with_torchvision,
        "whole, gpupipe._jpeg": with_windows([(0, 0, height, width)] * len(files)),
        "random_resized_crop": with_windows(random),
        "random_resized_crop, read down to the last row": with_windows(down),
        "resize and center_crop": with_windows([centre] * len(files)),
    }


def random_windows(height: int, width: int, count: int) -> list[Window]:
    """Return windows of torchvision's RandomResizedCrop."""
    import torch
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    image = torch.empty(3, height, width)
    scale, ratio = [0.08, 1.0], [3 / 4, 4 / 3]
    return [RandomResizedCrop.get_params(image, scale, ratio) for _ in range(count)]


def centre_window(height: int, width: int) -> Window:
    """Return what a resize of the short side to 256 reads for a crop of 224 at the centre."""
    scale = min(height, width) / _RESIZED
    rows, columns = (min(side, round(_CROP * scale) + 2 * _MARGIN) for side in (height, width))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


if __name__ == "__main__":
    main()
