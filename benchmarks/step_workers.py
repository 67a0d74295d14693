"""Another library as a contestant of benchmarks/steps.py: a process that measures step by step.

    python step_workers.py CONTESTANT PHOTOGRAPHS.npy   # names of steps on stdin, JSON on stdout

Each line on stdin is a JSON object {"step": name, "seconds": least}. The answer is one line:
{"microseconds": CPU time of the process an image}, or {} if the library has no such transform. With
a result of another dtype it is that of the call and of a copy into a batch, less that of copying
the image; "call" is the call alone. The answer to {} is the versions of the packages that matter.
"""

import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from typing import Any

import numpy as np
from numpy.typing import NDArray
from step_case import Call
from step_cases import CASES, RENAMED

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else 2.0.8 asks a server for its newest version
Images = list[NDArray[np.uint8]]
_WARM_CALLS = 3
_PACKAGES = (
    "albumentationsx",
    "albumentations",
    "torchvision",
    "torch",
    "opencv-python-headless",
    "numpy",
)


def main() -> None:
    contestant, photographs = sys.argv[1:]
    warnings.simplefilter("ignore")
    create = _torchvision if contestant == "torchvision" else _albumentations
    images = list(np.load(photographs))
    for line in sys.stdin:
        task = json.loads(line)
        if not task:
            print(json.dumps(list_versions()), flush=True)
            continue
        case = CASES[task["step"]]
        candidates = create(case.calls(contestant), contestant)
        prepared = [np.ascontiguousarray(image[..., : case.channels[0]]) for image in images]
        if contestant == "torchvision":
            prepared = _to_tensors(prepared)
        took = [_measure_step(run, prepared, task["seconds"]) for run in candidates]
        best = min(took, key=lambda one: one["microseconds"], default={})
        print(json.dumps(best), flush=True)


def list_versions() -> dict[str, str]:
    """Return the versions of the libraries in this environment."""
    installed = {d.metadata["Name"]: d.version for d in distributions()}
    return {name: installed[name] for name in _PACKAGES if name in installed}


def _albumentations(
    candidates: Sequence[Sequence[Call]], library: str
) -> list[Callable[[Any], Any]]:
    if not candidates:
        return []
    import albumentations
    import cv2

    cv2.setNumThreads(0)
    names = RENAMED if library == "albumentationsx" else {}

    def create(name: str, arguments: dict[str, Any]) -> Any:
        own = {names.get(key, key): value for key, value in arguments.items()}
        return getattr(albumentations, name)(**own, p=1)

    return [_chain_albumentations([create(*call) for call in calls]) for calls in candidates]


def _chain_albumentations(transforms: Sequence[Any]) -> Callable[[Any], Any]:
    def run(image: Any) -> Any:
        for transform in transforms:
            image = transform(image=image)["image"]
        return np.ascontiguousarray(image)  # a view, as of a crop, is no finished result

    return run


def _torchvision(candidates: Sequence[Sequence[Call]], library: str) -> list[Callable[[Any], Any]]:
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)

    def create(name: str, arguments: dict[str, Any]) -> Any:
        own = dict(arguments)
        if "interpolation" in own:
            own["interpolation"] = v2.InterpolationMode(own["interpolation"])
        if "dtype" in own:
            own["dtype"] = getattr(torch, own["dtype"])
        return getattr(v2, name)(**own)

    runs = []
    for calls in candidates:
        transform = v2.Compose([create(*call) for call in calls])
        runs.append(lambda image, transform=transform: _finish(transform(image)))
    return runs


def _finish(result: Any) -> Any:
    """Return an image that is contiguous, or a list of those."""
    if isinstance(result, tuple):
        return [image.contiguous() for image in result]
    return result.contiguous()


def _to_tensors(images: Images) -> list[Any]:
    import torch

    return [torch.from_numpy(image).permute(2, 0, 1).contiguous() for image in images]


def _measure_step(
    run: Callable[[Any], Any], images: Sequence[Any], seconds: float
) -> dict[str, float]:
    """Return the microseconds of a call; of another dtype, also with its copy into a batch.

    A loader delivers four bytes in place of one after a step that makes float32, and its figure is
    the difference. So is this one.
    """
    call = _measure(run, images, seconds)
    result = run(images[0])
    if isinstance(result, list) or result.dtype == images[0].dtype:
        return {"microseconds": call}
    with_copy = _measure(_copy_into_batch(run, result, len(images)), images, seconds)
    copy = _measure(_copy_into_batch(lambda image: image, images[0], len(images)), images, seconds)
    return {"microseconds": with_copy - copy, "call": call}


def _copy_into_batch(run: Callable[[Any], Any], like: Any, count: int) -> Callable[[Any], None]:
    """Return a function that copies results to the next place of a batch, like a loader."""
    shape = (count, *like.shape)
    batch = np.ones(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_ones(shape)
    places = itertools.cycle(batch)

    def run_and_copy(image: Any) -> None:
        next(places)[...] = run(image)

    return run_and_copy


def _measure(run: Callable[[Any], Any], images: Sequence[Any], seconds: float) -> float:
    """Return the microseconds of CPU time of a call, over calls of at least `seconds`."""
    for image in images[:_WARM_CALLS]:
        run(image)
    count, started = 0, time.process_time()
    while (took := time.process_time() - started) < seconds:
        run(images[count % len(images)])
        count += 1
    return 1e6 * took / count


if __name__ == "__main__":
    main()
