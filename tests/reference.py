"""What the torch lowerings (torchvision's functional ops) make of a sample: the reference for pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gpupipe.loader
from gpupipe.pipeline import Pipeline


def reference(loader: gpupipe.loader.Loader, epoch: int, id: int) -> torch.Tensor:
    """Sample `id` in an epoch, put through the torch lowering of every step."""
    data = torch.from_numpy(np.fromfile(loader.index.path(id), np.uint8))
    return transform(loader.config.pipeline, loader.config.loader.seed, epoch, id, data)


def transform(pipeline: Pipeline, seed: int, epoch: int, id: int, image: torch.Tensor) -> torch.Tensor:
    """`image` (the bytes of a file) put through the torch lowering of every step."""
    for entry in pipeline.entries:
        parameters = {name: values[0] for name, values in entry.parameters(seed, epoch, np.array([id])).items()}
        image = entry.step.torch(image, parameters)
    return image


def by_id(loader: gpupipe.loader.Loader) -> dict[int, torch.Tensor]:
    """One epoch of a loader (with ids: true), each image under its id."""
    images: dict[int, Any] = {}
    for batch in loader:
        images |= dict(zip(batch["id"].tolist(), batch["image"], strict=True))
    return images
