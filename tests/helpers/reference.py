"""What the torch lowerings (torchvision's functional ops) make of a sample: the reference for
pixels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpupipe
from gpupipe.engines.base import Operator
from gpupipe.pipeline.pipeline import Pipeline
from helpers import loaders

DECODE = {"decode": {"mode": "rgb"}}


@dataclass(frozen=True)
class Difference:
    """Between the engine's image and the reference's, in levels of 0 to 255 (or in the image's own
    floats).
    """

    id: int
    image: torch.Tensor
    expected: torch.Tensor

    @property
    def levels(self) -> torch.Tensor:
        return (self.image.double() - self.expected.double()).abs()

    @property
    def most(self) -> float:
        return float(self.levels.max())

    @property
    def mean(self) -> float:
        return float(self.levels.mean())

    @property
    def offset(self) -> float:
        """The mean with its sign: a shift in brightness."""
        return float((self.image.double() - self.expected.double()).mean())


def differences(
    root: Path,
    *steps: Any,
    epochs: Sequence[int] = (0,),
    decode: dict[str, Any] | None = None,
    **options: Any,
) -> list[Difference]:
    """Every image under `root` in each of some epochs, put through decode and `steps` by the DALI
    engine (batches of one) and by the reference.
    """
    found = []
    with load(root, *steps, decode=decode, **options) as loader:
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            for id, image in by_id(loader).items():
                expected = reference(loader, epoch, id)
                assert image.shape == expected.shape, (
                    f"{loader.index.location(id)}: {tuple(image.shape)}, but the reference is "
                    f"{tuple(expected.shape)}"
                )
                assert image.dtype == expected.dtype
                found.append(Difference(id, image, expected))
    assert found
    return found


def load(
    root: Path, *steps: Any, decode: dict[str, Any] | None = None, **options: Any
) -> gpupipe.Loader:
    pipeline = [{"decode": decode or {}}, *steps]
    settings = {"engine": "dali", "device": "auto", "batch_size": 1, **options}
    return loaders.load(root, pipeline, **settings)


def reference(loader: gpupipe.Loader, epoch: int, id: int) -> torch.Tensor:
    """Sample `id` in an epoch, put through the torch lowering of every step."""
    data = torch.from_numpy(np.fromfile(loader.index.location(id), np.uint8))
    return transform(loader.config.pipeline, loader.config.loader.seed, epoch, id, data)


def transform(
    pipeline: Pipeline,
    seed: int,
    epoch: int,
    id: int,
    image: torch.Tensor,
    first: int = 0,
    repeat: int = 0,
) -> torch.Tensor:
    """`image` (the bytes of a file) put through the torch lowering of every step, from number
    `first` on, as it is when the sample comes again for the `repeat`-th time in the epoch.
    """
    for entry in pipeline.entries[first:]:
        parameters = {
            name: values[0]
            for name, values in entry.parameters(
                seed, epoch, np.array([id]), np.array([repeat])
            ).items()
        }
        image = entry.step.torch(image, parameters)
    return image


def by_id(loader: gpupipe.Loader) -> dict[int, torch.Tensor]:
    """One epoch of a loader (with ids: true), each image under its id."""
    return {id: image for batch in loader for id, image in _samples(batch)}


def _samples(batch: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for id, image in zip(batch["id"].tolist(), batch["image"], strict=True):
        yield id, image.cpu()


def emitted(loader: gpupipe.Loader) -> list[str]:
    """The names of the operators over pixels, in order."""
    return [op for op, _, _ in operators(loader)]


def operators(loader: gpupipe.Loader) -> list[Operator]:
    """The operators over pixels that engine cpu or dali built, in order."""
    engine: Any = loader.engine
    if engine.name == "cpu":
        return engine._phases[0].operators()
    return [(e.op, e.device, e.steps) for e in engine._built.lowering.operators()]
