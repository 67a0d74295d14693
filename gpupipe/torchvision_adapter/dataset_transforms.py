"""The transforms of torchvision's data sets: load() makes steps of them.

Inside of the data set a transform would draw from global generators, so that no sample had the same
draws twice.
"""

import copy
from collections.abc import Mapping
from typing import Any

from gpupipe.dataset.given_dataset import name_dataset
from gpupipe.errors import ConfigError
from gpupipe.torchvision_adapter.adapter import from_torchvision

_DECODE = "decode"


def take_transform(dataset: Any, changes: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Move the transform of a data set of torchvision to the front of the pipeline.

    Args:
        dataset: A data set. One that is not torchvision's own class stays as it is.
        changes: The keyword arguments of load().

    Returns:
        A shallow copy of the data set without its transform, and the keyword arguments with the
        steps: `decode`, those of the transform, and those under `pipeline`.

    Raises:
        ConfigError: The transform has no counterpart, or `pipeline` is no list.
    """
    is_own = type(dataset).__module__.startswith("torchvision.datasets")
    transform = _find_transform(dataset) if is_own else None
    if transform is None:
        return dataset, dict(changes)
    steps = changes.get("pipeline", [])
    if not isinstance(steps, (list, tuple)):
        raise ConfigError.at(
            "pipeline",
            f"{name_dataset(dataset)} has a transform, whose steps come first: write a list of the "
            "steps that follow, or set the transform of the data set to None",
        )
    bare = copy.copy(dataset)
    target = getattr(bare, "target_transform", None)
    bare.transform = None
    bare.transforms = None
    if target is not None:
        from torchvision.datasets.vision import StandardTransform

        bare.transforms = StandardTransform(None, target)
    own: list[Any] = from_torchvision(transform)
    following = [step for step in steps if step != _DECODE]
    return bare, {**changes, "pipeline": [*own, *following]}


def _find_transform(dataset: Any) -> Any:
    """Return the transform of the images, or that of images and boxes; None if there is none."""
    if (transform := getattr(dataset, "transform", None)) is not None:
        return transform
    joint = getattr(dataset, "transforms", None)
    return None if getattr(dataset, "target_transform", None) is not None else joint
