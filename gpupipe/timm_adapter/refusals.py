"""Names the arguments of timm.data.create_loader that gpupipe cannot honour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpupipe.errors import ConfigError, Problem, shown

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
"""Arguments that only matter beside `input_size_choices`, in timm too. train.py passes them."""


def drop_schedule(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without timm's arguments that matter beside input_size_choices alone."""
    return {name: value for name, value in settings.items() if name not in _SCHEDULE}


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for arguments that would do something else than in timm.

    Args:
        arguments: Those of gpupipe.timm.create_loader, by name.

    Raises:
        ConfigError: It names each of them, and says what to write instead.
    """
    problems = [
        Problem("gpupipe.timm.create_loader", f"{name} is {shown(arguments[name])}: {advice}")
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
