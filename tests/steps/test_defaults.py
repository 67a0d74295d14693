"""The parameters of steps have torchvision's names and defaults."""

import enum
import inspect
from typing import Any

from torchvision.transforms import v2

from gpupipe.pipeline.step import Step
from gpupipe.pipeline.step_registry import STEPS


def find_torchvision(name: str) -> Any:
    """Return torchvision's transform of a step, or None."""
    return getattr(v2, STEPS.find(name).__name__, None) or getattr(v2, name.upper(), None)


def defaults_of(transform: Any, step: type[Step]) -> list[tuple[str, Any, Any]]:
    """Return name, torchvision's default and ours of each parameter; "required" without one."""
    return [
        (
            key,
            "required" if parameter.default is parameter.empty else plain(parameter.default),
            "required" if field.is_required() else plain(field.get_default()),
        )
        for key, parameter in inspect.signature(transform).parameters.items()
        if (field := step.model_fields.get(key)) is not None
    ]


def plain(value: Any) -> Any:
    """Return enums as their values, and tuples as lists; one value if a list has no other."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        is_one = value and all(part == value[0] for part in value)
        return plain(value[0]) if is_one else [plain(part) for part in value]
    return value


SHARED = [name for name in sorted(STEPS.builtin_names) if find_torchvision(name)]


def test_defaults_are_torchvisions() -> None:
    different = [
        f"{name}.{key}: {ours}, but torchvision's is {theirs}"
        for name in SHARED
        for key, theirs, ours in defaults_of(find_torchvision(name), STEPS.find(name))
        if ours != theirs
    ]
    assert different == []


def test_nearly_all_steps_are_compared() -> None:
    assert len(SHARED) >= 39
    own = {"decode", "dali", "timm_augment"}
    assert own.isdisjoint(SHARED)
