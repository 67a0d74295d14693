"""Draws of the user's functions from global generators: finds them, and seeds the generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

_LOW = 2**31
_IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)
"""Whether calls check that the function draws from its `rng` alone."""


class GlobalDrawsError(Exception):
    """A function draws from a generator whose draws depend on which call is first."""


@contextmanager
def check_draws() -> Iterator[None]:
    """Let calls in the `with` block run twice, to find functions that draw elsewhere.

    No other thread may draw from global generators meanwhile. Afterwards they go on as before.
    """
    with _keeping_states():
        token = _IS_CHECKED.set(True)
        try:
            yield
        finally:
            _IS_CHECKED.reset(token)


@contextmanager
def _keeping_states() -> Iterator[None]:
    import torch

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def check_call(name: str, call: Callable[[Tensor], Tensor], image: Tensor) -> Tensor:
    """Return call(image); in check_draws() call it on a copy, too.

    Raises:
        GlobalDrawsError: In check_draws(): the call draws from a global generator, or returns
            another output the second time.
    """
    if not _IS_CHECKED.get():
        return call(image)
    states, copy = _read_generators(), image.clone()
    output = call(image)
    drawn = [name for name, state in _read_generators().items() if state != states[name]]
    again = call(copy)
    workers = "set workers: 1 for the step, or " if drawn else ""
    drawn = drawn or ([] if _are_equal(output, again) else ["another generator"])
    if drawn:
        raise GlobalDrawsError(
            f"{name} draws from {' and '.join(drawn)}, so that its images would depend "
            f"on which call is first: {workers}let it draw from a parameter 'rng', a "
            "torch.Generator (or 'rng: np.random.Generator')"
        )
    return output


def find_draws(call: Callable[[], object]) -> list[str]:
    """Call a function, and return the global generators from which it draws, by their names.

    Afterwards the generators go on as before. No other thread may draw from them meanwhile.
    """
    with _keeping_states():
        states = _read_generators()
        call()
        return [name for name, state in _read_generators().items() if state != states[name]]


def split_seeds(seeds: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return seeds from 0 to 2**53 - 1 as int32 (..., 2): the upper bits, and the lower 31."""
    return np.stack([seeds // _LOW, seeds % _LOW], -1).astype(np.int32)


def join_seeds(parts: ArrayLike) -> NDArray[np.int64]:
    """Return the seeds, int64 (...), of what `split_seeds` returned."""
    upper, lower = np.moveaxis(np.asarray(parts, np.int64), -1, 0)
    return np.asarray(upper * _LOW + lower)


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch (on the CPU), NumPy and Python's module random.

    Args:
        seed: 0 to 2**53 - 1.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    np.random.seed(np.array([seed % 2**32, seed >> 32], np.uint32))
    random.seed(seed)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators for the `with` block; afterwards they go on as before.

    No other thread may draw from them meanwhile.
    """
    with _keeping_states():
        seed_generators(seed)
        yield


def _read_generators() -> dict[str, object]:
    """Return the states of the global generators, by name."""
    import torch

    numpy: Any = np.random.get_state(legacy=True)
    return {
        "torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "NumPy's global generator": (numpy[1].tobytes(), *numpy[2:]),
        "Python's module random": random.getstate(),
    }


def _are_equal(first: Tensor, second: Tensor) -> bool:
    import torch

    same = first.shape == second.shape and first.dtype == second.dtype
    return same and torch.equal(torch.nan_to_num(first), torch.nan_to_num(second))
