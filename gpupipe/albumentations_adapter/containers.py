"""The steps of Albumentations' containers that draw which of their transforms run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Choice = tuple[str, Sequence[float] | None]
"""The step, and the weights of the children if it overrides their p."""


def _choose_one(container: Any) -> Choice | None:
    return "random_choice", [float(share) for share in container.transforms_ps]


def _choose_either(container: Any) -> Choice | None:
    is_pair = len(container.transforms) == 2
    return ("random_choice", [container.p, 1.0 - container.p]) if is_pair else None


def _choose_some(container: Any) -> Choice | None:
    return ("random_choice", None) if container.n == 1 and not container.replace else None


def _choose_order(container: Any) -> Choice | None:
    is_whole = container.n == len(container.transforms) and not container.replace
    return ("random_order", None) if is_whole else _choose_some(container)


CHOICES: dict[str, Callable[[Any], Choice | None]] = {
    "OneOf": _choose_one,
    "OneOrOther": _choose_either,
    "SomeOf": _choose_some,
    "RandomOrder": _choose_order,
}
"""For each container: returns its step; None if it needs another."""
