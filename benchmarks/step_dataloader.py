"""Albumentations in a DataLoader, as a contestant of benchmarks/step_recipe.py.

    python step_dataloader.py LIBRARY ROOT WORKERS SECONDS   # prints one line of JSON

Runs in the library's environment, which has no gpupipe.
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from step_workers import RENAMED

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
_RANGES = {"brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "saturation": (0.6, 1.4)}
_WARM_PASSES = 1


class _Photographs(torch.utils.data.Dataset[Any]):
    def __init__(self, root: Path, transform: Any) -> None:
        self._files, self._transform = [str(f) for f in sorted(root.glob("*/*.jpg"))], transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        cv2.setNumThreads(0)
        image = cv2.cvtColor(cv2.imread(self._files[n]), cv2.COLOR_BGR2RGB)
        pixels = self._transform(image=image)["image"]
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))), n


def _create_transform(library: str) -> Any:
    import albumentations as A

    names = RENAMED if library == "albumentationsx" else {}
    ranges = {names.get(k, k): v for k, v in {**_RANGES, "hue": (-0.1, 0.1)}.items()}
    steps = [A.RandomResizedCrop((224, 224)), A.HorizontalFlip(p=0.5)]
    return A.Compose([*steps, A.ColorJitter(**ranges, p=1), A.Normalize()])


def main() -> None:
    library, root, workers, seconds = sys.argv[1:]
    warnings.simplefilter("ignore")
    loader = torch.utils.data.DataLoader(
        _Photographs(Path(root), _create_transform(library)),
        batch_size=128,
        shuffle=True,
        num_workers=int(workers),
        persistent_workers=True,
    )
    for _ in range(_WARM_PASSES):
        for _ in loader:
            pass
    images, started = 0, time.perf_counter()
    while time.perf_counter() - started < float(seconds):
        images += sum(len(labels) for _, labels in loader)
    print(json.dumps({"images_per_second": images / (time.perf_counter() - started)}))


if __name__ == "__main__":
    main()
