"""The steps of Albumentations' containers that draw which of their transforms run."""

from collections.abc import Callable, Sequence
from typing import Any

Choice = tuple[float, str, Sequence[float] | None]
"""The probability that it runs, the step, and the weights of the children if it forces them."""


def _choose_one(container: Any, p: float) -> Choice | None:
    return p, "random_choice", [float(share) for share in container.transforms_ps]


def _choose_either(container: Any, p: float) -> Choice | None:
    is_pair = len(container.transforms) == 2
    return (1.0, "random_choice", [container.p, 1.0 - container.p]) if is_pair else None


def _choose_some(container: Any, p: float) -> Choice | None:
    return (p, "random_choice", None) if container.n == 1 and not container.replace else None


def _choose_order(container: Any, p: float) -> Choice | None:
    is_whole = container.n == len(container.transforms) and not container.replace
    return (p, "random_order", None) if is_whole else _choose_some(container, p)


CHOICES: dict[str, Callable[[Any, float], Choice | None]] = {
    "OneOf": _choose_one,
    "OneOrOther": _choose_either,
    "SomeOf": _choose_some,
    "RandomOrder": _choose_order,
}
"""For each container: returns its step; None if it needs another."""
UNFORCED = ("OneOrOther", "SomeOf", "RandomOrder")
"""Those that draw by their own p even in a container that forces its transforms."""
