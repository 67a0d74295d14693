"""The object that a step `python` calls for a transform of Albumentations."""

import importlib
import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class AlbumentationsTransform:
    """Calls a transform on images, tensors (C, H, W), with draws that are seeded by `rng`.

    A transform keeps its parameters and its generators in itself, so each thread has its own.

    Args:
        transform: The transform as `albumentations.to_dict` writes it.

    Raises:
        ImportError: Albumentations, or the module of the transform, cannot be imported.
        KeyError: Albumentations has no such transform.
    """

    def __init__(self, transform: Mapping[str, Any]) -> None:
        self._description = transform
        self._of_thread = threading.local()
        self._restore()

    def __call__(self, image: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        if not hasattr(self._of_thread, "transform"):
            self._of_thread.transform = self._restore()
        transform = self._of_thread.transform
        transform.set_random_seed(int(rng.integers(2**32)))
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        changed = transform(image=pixels)["image"]
        if changed.ndim == 2:  # some transforms of gray images lose the axis of channels
            changed = changed[..., None]
        return torch.from_numpy(np.ascontiguousarray(changed)).permute(2, 0, 1)

    def _restore(self) -> Any:
        """Construct the transform."""
        # Else each process asks the package index for a newer release when it imports the package.
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        import albumentations

        for name in _list_modules(self._description):  # a class registers itself there
            importlib.import_module(name)
        return albumentations.from_dict({"transform": dict(self._description)})


def _list_modules(description: Mapping[str, Any]) -> list[str]:
    """Return the modules of the classes in a description that are not Albumentations' own."""
    module = str(description["__class_fullname__"]).rpartition(".")[0]
    nested = [name for part in description.get("transforms", ()) for name in _list_modules(part)]
    return [module, *nested] if module and not module.startswith("albumentations") else nested
