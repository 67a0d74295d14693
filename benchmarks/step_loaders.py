"""gpupipe as a contestant of benchmarks/steps.py: a process that measures one step at a time.

    python step_loaders.py FOLDER SOURCE   # names of steps on stdin, JSON on stdout

A step costs the CPU time of a loader with it less that of a loader without it, whose images have
the size of the step's result. The passes of both loaders alternate.

SOURCE is `images`, decoded images from the decoded cache, or an array: a dtype, a layout and the
number of channels, such as `uint8-HWC-3`, from one .npy file.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import photos
import step_workers
from PIL import Image
from step_case import SIDE, Case
from step_cases import CASES

import gpupipe.loader
from gpupipe.errors import ConfigError

COUNT = 64
_PHOTOGRAPH = (SIDE, SIDE)
_BATCH_SIZE = 16
_QUALITY = 95
_FLOATS_ONLY = {"normalize", "random_erasing random"}
"""Steps that need a to_dtype before them if the images are uint8."""
_WARM_PASSES, _SLOW = 3, 0.5
"""Passes before the measurement; after one of more than so many seconds, the last."""
_IDLE = 0.005
"""Seconds in which a process that has no more work uses less than a tenth of a core."""


def main() -> None:
    folder, source = Path(sys.argv[1]), sys.argv[2]
    for line in sys.stdin:
        task = json.loads(line)
        if not task:
            print(json.dumps(step_workers.list_versions()), flush=True)
            continue
        try:
            answer = measure(folder, source, task["step"], task["seconds"])
        except ConfigError:  # the step does not take so many channels
            answer = {}
        print(json.dumps(answer), flush=True)


def find_images(folder: Path, size: tuple[int, int]) -> Path:
    """Return the folder of the photographs, JPEGs of `size` [height, width] in pixels."""
    return photos.crops(folder, COUNT, size[::-1], _QUALITY)


def write_pixels(folder: Path) -> Path:
    """Return the .npy file with the photographs, uint8 (N, H, W, 3), for the other libraries."""
    return _write_array(folder, "uint8-HWC-3", _PHOTOGRAPH)


def _write_array(folder: Path, source: str, size: tuple[int, int]) -> Path:
    path = folder / f"steps-{'x'.join(map(str, dict.fromkeys(size)))}-{source}.npy"
    if not path.exists():
        dtype, layout, channels = source.split("-")
        files = sorted(find_images(folder, size).glob("*/*.jpg"))
        images = np.stack([np.array(Image.open(file).convert("RGBA")) for file in files])
        images[..., 3] = images[..., 1]
        pixels = images[..., : int(channels)]
        if layout == "CHW":
            pixels = np.moveaxis(pixels, -1, 1)
        if dtype == "float32":
            pixels = pixels / np.float32(255)
        np.save(path, np.ascontiguousarray(pixels))
    return path


def measure(folder: Path, source: str, step: str, seconds: float) -> dict[str, float]:
    """Return the microseconds of CPU time an image: with the step, without it, and the difference.

    seconds: Least CPU time of the passes with the step.
    """
    case = CASES[step]
    is_converted = step in _FLOATS_ONLY and not source.startswith("float")
    needed = [{"to_dtype": {"dtype": "float32", "scale": True}}] if is_converted else []
    steps = [*needed, case.step, *case.then]
    with (
        closing(_load(folder, source, _PHOTOGRAPH, case, steps)) as with_step,
        closing(_load(folder, source, case.size, case)) as without,
    ):
        took = _alternate({"with": with_step, "without": without}, seconds)
    return {**took, "microseconds": took["with"] - took["without"]}


def _alternate(loaders: dict[str, Any], seconds: float) -> dict[str, float]:
    """Return the microseconds of CPU time an image of each loader, after passes to warm up.

    Until all batches in flight have been delivered once, the kernel clears their memory.
    """
    for loader in loaders.values():
        list(loader)  # with all batches held, the pool gets the blocks that it keeps from then on
        for _ in range(_WARM_PASSES):
            if _pass(loader) > _SLOW:
                break
    passes: dict[str, list[float]] = {name: [] for name in loaders}
    while sum(passes["with"]) < seconds:
        for name, loader in loaders.items():
            passes[name].append(_pass(loader))
    return {name: 1e6 * float(np.mean(took)) / COUNT for name, took in passes.items()}


def _pass(loader: Any) -> float:
    """Return the CPU time of an epoch, in seconds.

    At its end the engine prepares batches of the next one. They are waited for and counted: else
    another loader's pass would count them.
    """
    started = time.process_time()
    for _ in loader:
        pass
    used = -1.0
    while time.process_time() - used > _IDLE / 10:
        used = time.process_time()
        time.sleep(_IDLE)
    return time.process_time() - started


def _load(
    folder: Path, source: str, size: tuple[int, int], case: Case, steps: Sequence[Any] = ()
) -> Any:
    """Return a loader on one thread that reads images of `size` [height, width] in pixels.

    Without steps, its images have the channels of the case's result.
    """
    # A crop that draws ends the prefix that the decoded cache keeps, so each step runs every time.
    prefix: list[Any] = [{"random_crop": {"size": list(size)}}]
    if source == "images":
        root = str(find_images(folder, size))
        cache = {"where": "memory", "max_bytes": "1GB"}
        data: dict[str, Any] = {"source": "folder", "root": root, "cache_decoded": cache}
        channels = case.channels[0 if steps else 1]
        prefix.insert(0, {"decode": {"mode": "gray" if channels == 1 else "rgb"}})
    else:
        path, layout = _write_array(folder, source, size), source.split("-")[1]
        data = {"source": "numpy", "files": str(path), "rows": True, "layout": layout}
    pipeline: Any = [*prefix, *steps]
    if case.views > 1:
        view = {"count": case.views, "steps": list(steps)}
        pipeline = {"steps": prefix, "views": {"view": view}}
    config = {"data": data, "pipeline": pipeline}
    options = {"engine": "cpu", "device": "cpu", "threads": 1, "batch_size": _BATCH_SIZE}
    return gpupipe.load(config, **options)


if __name__ == "__main__":
    main()
