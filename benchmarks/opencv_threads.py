"""What an expert writes by hand with OpenCV and simplejpeg on a pool of threads, for the three
workloads of baselines.py. Nothing here uses gpupipe.

Both libraries release the interpreter's lock, so threads use all cores. The memory of three batches
is used again and again: a batch is valid until the next but one arrives.
"""

import math
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import baselines
import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

_SIDES = {"affine": 250, "imagenet_train": 224, "imagenet_eval": 224}
_BATCHES, _RESIZED = 3, 256
_UNIT = np.arange(256, dtype=np.float32) / 255
_TABLES = {
    "affine": [_UNIT] * 3,
    "imagenet_train": [(_UNIT - m) / s for m, s in zip(baselines.MEAN, baselines.STD, strict=True)],
}
_TABLES["imagenet_eval"] = _TABLES["imagenet_train"]
Image = NDArray[np.uint8]


class Batches:
    """Iterating makes an epoch of batches (B, 3, H, W) of float32, one batch ahead."""

    def __init__(self, workload: baselines.Workload, root: Path, threads: int) -> None:
        cv2.setNumThreads(0)
        side, self._workload = _SIDES[workload.pipeline], workload
        self._memory = np.zeros((_BATCHES, workload.batch_size, 3, side, side), np.float32)
        self._tables = [np.asarray(t, np.float32) for t in _TABLES[workload.pipeline]]
        self._transform = {
            "affine": _warp,
            "imagenet_train": _crop_and_resize,
            "imagenet_eval": _resize_and_crop,
        }[workload.pipeline]
        self._paths = sorted(root.glob("*/*.jpg"))
        self._threads = ThreadPoolExecutor(threads)
        self._started = 0

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        paths = list(self._paths)
        if self._workload.shuffle:
            random.shuffle(paths)
        size = self._workload.batch_size
        in_flight: deque[tuple[NDArray[np.float32], list[Future[None]]]] = deque()
        for first in range(0, len(paths), size):
            in_flight.append(self._start(paths[first : first + size]))
            if len(in_flight) == 2:
                yield _wait(*in_flight.popleft())
        while in_flight:
            yield _wait(*in_flight.popleft())

    def _start(self, paths: list[Path]) -> tuple[NDArray[np.float32], list[Future[None]]]:
        batch = self._memory[self._started % _BATCHES][: len(paths)]
        self._started += 1
        work = zip(paths, batch, strict=True)
        return batch, [self._threads.submit(self._make, *sample) for sample in work]

    def _make(self, path: Path, place: NDArray[np.float32]) -> None:
        pixels = simplejpeg.decode_jpeg(path.read_bytes(), fastdct=False, fastupsample=False)
        pixels = self._transform(pixels)
        for channel, table, plane in zip(cv2.split(pixels), self._tables, place, strict=True):
            cv2.LUT(channel, table, dst=plane)


def _wait(batch: NDArray[np.float32], made: list[Future[None]]) -> NDArray[np.float32]:
    for future in made:
        future.result()
    return batch


def _warp(image: Image) -> Any:
    height, width = image.shape[:2]
    centre = (width - 1) / 2, (height - 1) / 2
    matrix = cv2.getRotationMatrix2D(centre, random.uniform(-5, 5), random.uniform(0.5, 2))
    matrix[:, 2] += random.uniform(-0.1, 0.1) * width, random.uniform(-0.1, 0.1) * height
    return cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR)


def _crop_and_resize(image: Image) -> Any:
    top, left, height, width = _draw_window(*image.shape[:2])
    resized = _resize(image[top : top + height, left : left + width], (224, 224))
    return cv2.flip(resized, 1) if random.random() < 0.5 else resized


def _draw_window(height: int, width: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = random.uniform(0.08, 1) * height * width
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    return 0, 0, height, width


def _resize_and_crop(image: Image) -> Any:
    height, width = image.shape[:2]
    scale = _RESIZED / min(height, width)
    resized = _resize(image, (round(width * scale), round(height * scale)))
    top, left = (resized.shape[0] - 224) // 2, (resized.shape[1] - 224) // 2
    return resized[top : top + 224, left : left + 224]


def _resize(image: Image, size: tuple[int, int]) -> Any:
    """INTER_AREA is OpenCV's resize without aliases, and its linear one where images grow."""
    is_smaller = size[0] < image.shape[1]
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA if is_smaller else cv2.INTER_LINEAR)
