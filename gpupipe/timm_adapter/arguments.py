"""Reads the arguments of timm.data.create_loader that are not about steps.

`check_arguments` refuses the arguments that gpupipe cannot honour. `read_data` makes an index of
the samples of `dataset`, and `list_changes` returns the functions that timm applies to whole
batches: mixing, timm's RandomErasing, and a change of the images' dtype.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpupipe.dataset.index import Index, build
from gpupipe.errors import ConfigError, DataError, Problem, shown
from gpupipe.timm_adapter.transform_steps import ERASING_VALUES

if TYPE_CHECKING:
    from torch import Tensor


_WHERE = "gpupipe.timm.create_loader"
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "random")
_OWN = "use timm.data.create_loader for it"
_UNLESS_NONE = {
    "crop_border_pixels": f"there is no step that trims a border: {_OWN}",
    "input_size_choices": "write a schedule of sizes in a config, as progressive_resizing has one",
}
_SCHEDULE = frozenset(
    """batch_size_choices batch_choice_weights batch_choice_seed batch_choice_schedule
    batch_schedule_epochs batch_schedule_spread batch_schedule_random_mix num_batches""".split()
)
"""Arguments that timm uses only with `input_size_choices`, and that train.py always passes."""


def drop_schedule(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without the arguments that timm uses only with input_size_choices."""
    return {name: value for name, value in settings.items() if name not in _SCHEDULE}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError if gpupipe cannot treat an argument as timm does.

    Args:
        arguments: The arguments of gpupipe.timm.create_loader, by name.

    Raises:
        ConfigError: The message names each such argument, and says what to write instead.
    """
    problems = [
        Problem(_WHERE, f"{name} is {shown(arguments[name])}: {advice}")
        for name, advice in _list_problems(arguments)
    ]
    if problems:
        raise ConfigError(problems)


def _list_problems(a: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, advice in _UNLESS_NONE.items():
        if a[name]:
            yield name, advice
    if a["train_crop_mode"] not in (None, "rrc"):
        yield "train_crop_mode", "only 'rrc', a random_resized_crop, has a step: leave it out"
    if a["num_aug_splits"]:
        yield "num_aug_splits", "a pipeline makes one image of each: use the views of a config"
    if a["tf_preprocessing"]:
        yield "tf_preprocessing", f"there are no steps of TensorFlow 1: {_OWN}"
    if a["interpolation"] not in INTERPOLATIONS:
        yield "interpolation", f"write one of {', '.join(INTERPOLATIONS)}"
    if a["interpolation"] == "random" and not a["is_training"]:
        yield "interpolation", "evaluation takes one of nearest, bilinear, bicubic"
    if a["re_prob"] and a["re_mode"] not in ("const", "rand", "pixel"):
        yield "re_mode", "write const, rand or pixel"
    if callable(a["worker_seeding"]):
        yield "worker_seeding", "no worker draws numbers: write seed=NUMBER"
    yield from _list_crop_problems(a)


def _list_crop_problems(a: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if a["is_training"]:
        return
    if a["crop_mode"] not in (None, "center", "squash"):
        yield "crop_mode", "write center or squash: no step pads to a border of the mean"
    size = a["input_size"]
    sides = set() if isinstance(size, int) else set(tuple(size)[-2:])
    if len(sides) > 1 and a["crop_mode"] != "squash":
        yield "input_size", "crop_mode='center' takes squares: write crop_mode='squash'"


def read_data(dataset: Any, channels: int) -> tuple[dict[str, Any], Index | None]:
    """Return the section `data` of a config, and an index of the samples of `dataset`.

    The index is None if `dataset` is a dict or a path: then the source makes the index itself.

    Args:
        dataset: A dataset of timm or torchvision over image files; a folder of class folders; or
            a dict, the `data` of a config.
        channels: The number of channels of the images, 1 or 3.

    Raises:
        ConfigError: If the samples are not image files, or the dataset has a target_transform,
            additional features, or an image mode that does not fit `channels`.
        DataError: If the dataset has no samples.
    """
    if isinstance(dataset, Mapping):
        return dict(dataset), None
    if isinstance(dataset, (str, Path)):
        return {"source": "folder", "root": str(dataset)}, None
    reader = getattr(dataset, "reader", dataset)
    samples = getattr(reader, "samples", None)
    root = getattr(reader, "root", None)
    if root is None or not _are_files(samples):
        kind = f"{type(dataset).__name__} of {type(reader).__name__}"
        advice = (
            "it reads no files of one image each: pass the data of a config in its place, such as "
            "{'source': 'webdataset', 'shards': 'train-*.tar'} (docs/sources.md)"
        )
        raise ConfigError.at(_WHERE, f"dataset is {kind}: {advice}")
    _check_dataset(dataset, channels)
    return {"source": "folder", "root": str(root)}, _build_index(str(root), reader, samples)


def _are_files(samples: Any) -> bool:
    return isinstance(samples, Sequence) and all(
        isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[0], (str, Path))
        for sample in samples[:1]
    )


def _check_dataset(dataset: Any, channels: int) -> None:
    problems = []
    if getattr(dataset, "target_transform", None) is not None:
        advice = "labels are the numbers of the classes: set it to None, and change the batches"
        problems.append(f"dataset.target_transform is set: {advice}")
    if getattr(dataset, "additional_features", None):
        problems.append("dataset.additional_features is set: batches are (images, labels)")
    mode = getattr(dataset, "input_img_mode", "RGB" if channels == 3 else "L")
    if mode != ("RGB" if channels == 3 else "L"):
        advice = "write RGB for 3 channels, or L for 1"
        problems.append(f"dataset.input_img_mode is {mode!r} with {channels} channels: {advice}")
    if problems:
        raise ConfigError([Problem(_WHERE, problem) for problem in problems])


def _build_index(root: str, reader: Any, samples: Any) -> Index:
    if not samples:
        raise DataError(f"{root}: the dataset has no samples")
    names = [os.path.relpath(path, root) for path, _ in samples]
    labels = np.array([label for _, label in samples], np.int64)
    numbers: dict[str, int] = reader.class_to_idx
    count = max([*numbers.values(), int(labels.max())]) + 1
    classes = [str(number) for number in range(count)]
    for name, number in numbers.items():
        classes[number] = name
    return build(str(Path(root).resolve()), names, labels, classes)


Batch = tuple[Any, Any]


@dataclass(frozen=True)
class CollateMixup:
    """Mixes a batch with timm's FastCollateMixup, on the device of the batch.

    timm mixes uint8 images, and this class mixes normalized floats. Mixing is linear, so the result
    is the same, but without the rounding to whole levels.

    Attributes:
        mixup: The FastCollateMixup.
    """

    mixup: Any

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        from timm.data.mixup import Mixup

        # FastCollateMixup.__call__ collates samples; that of its base class mixes a batch.
        mixed: Batch = Mixup.__call__(self.mixup, images, labels)
        return mixed


@dataclass(frozen=True)
class Erase:
    """Runs timm's RandomErasing on a batch, with random numbers of torch and Python.

    Attributes:
        probability: The probability that an image is erased.
        mode: "const", "rand" or "pixel".
        max_count: The maximum number of windows in an image.
        num_splits: The number of augmentation splits; timm leaves the first one alone.
    """

    probability: float
    mode: str
    max_count: int
    num_splits: int

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        from timm.data.random_erasing import RandomErasing

        return RandomErasing(**asdict(self), device=images.device)(images), labels


def list_changes(a: Mapping[str, Any]) -> list[Callable[..., Batch]]:
    """Return the functions that change a whole batch, (images, labels), in the order of timm.

    These are mixing, then random erasing, then the conversion to another dtype, each only if the
    arguments ask for it.

    Args:
        a: The arguments of gpupipe.timm.create_loader, by name.

    Raises:
        ConfigError: If `collate_fn` is not from timm.
    """
    import torch

    mixes = _read_collate_function(a["collate_fn"])
    changes: list[Callable[..., Batch]] = [*mixes]
    erases = a["re_prob"] > 0 and a["is_training"] and not a["no_aug"]
    splits = 2 if a["re_split"] else 0
    if erases and (mixes or splits or a["re_count"] != 1 or a["re_mode"] not in ERASING_VALUES):
        changes.append(Erase(a["re_prob"], a["re_mode"], a["re_count"], splits))
    dtype = torch.float16 if a["fp16"] else a["img_dtype"]
    if dtype not in (None, torch.float32):
        changes.append(lambda images, labels: (images.to(dtype), labels))
    return changes


def _read_collate_function(collate_fn: Callable[..., Any] | None) -> list[CollateMixup]:
    """Return the mixing function of a `collate_fn` from timm, or [] if it mixes nothing."""
    if collate_fn is None:
        return []
    from timm.data.loader import fast_collate
    from timm.data.mixup import FastCollateMixup

    if isinstance(collate_fn, FastCollateMixup):
        return [CollateMixup(collate_fn)]
    if collate_fn is fast_collate:
        return []
    name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
    advice = "batches are made by the engine: write None, or timm's FastCollateMixup"
    raise ConfigError.at(_WHERE, f"collate_fn is {name}: {advice}")
