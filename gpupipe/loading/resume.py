"""The state of a loader: what identifies its data and pipeline, and whether a state fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpupipe.config import Config
from gpupipe.dataset.index import Index
from gpupipe.errors import StateError, short
from gpupipe.sampling.selection import DEFAULTS

_VERSION = 2
_VERSIONS = (1, _VERSION)
"""Those that can be loaded. A state of version 1 has no key of `_OF_VERSION_2`."""
_TAKES = "load_state_dict() takes the dict that state_dict() of a loader returned"
_TYPES = {"version": int, "data": str, "pipeline": str, "batch": str, "seed": int, "shuffle": bool}
_ENTRY = ("step", "epoch", "position", "world_size", "batch_size")
"""Keys of an entry of the history."""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_entry(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_count(value.get(key)) for key in _ENTRY)


_OF_VERSION_2: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "content": lambda value: isinstance(value, Mapping),
    "functions": lambda value: isinstance(value, Mapping),
    "skipped": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "history": lambda value: isinstance(value, list) and all(map(_is_entry, value)),
}


def identify(config: Config, index: Index) -> dict[str, Any]:
    """Return the part of a state that is the same for the whole life of a loader."""
    batch = config.batch.fingerprint
    return {
        "version": _VERSION,
        "data": index.fingerprint,
        "pipeline": config.pipeline.fingerprint,
        **({"batch": batch} if batch else {}),
    }


def check_state(state: object, own: Mapping[str, Any], strict: bool) -> Mapping[str, Any]:
    """Return a state; raise StateError if it is none, or does not fit a loader.

    Args:
        state: The argument of load_state_dict().
        own: What `identify` returns for the loader, and its sampler's state.
        strict: Whether the state must belong to the same data and pipeline.
    """
    if not isinstance(state, Mapping):
        actual = "None" if state is None else f"a {type(state).__name__}"
        raise StateError(f"{_TAKES}, and not {actual}")
    missing = [key for key in own if key not in state and key not in (*DEFAULTS, "batch")]
    if missing:
        keys = ", ".join(repr(key) for key in state)
        contents = f"that has {short(keys)}" if keys else "that is empty"
        raise StateError(f"{_TAKES}, and not one {contents}: it lacks {missing[0]!r}")
    for key, kind in _TYPES.items():
        if key in state and type(state[key]) is not kind:
            raise StateError(f"{_TAKES}, and not one whose {key!r} is {short(repr(state[key]))}")
    if state["version"] not in _VERSIONS:
        versions = f"{state['version']}, not {_VERSION}"
        raise StateError(f"the state is of another version of gpupipe: {versions}")
    for key, is_valid in _OF_VERSION_2.items():
        if key in state and not is_valid(state[key]):
            raise StateError(f"{_TAKES}, and not one whose {key!r} is {short(repr(state[key]))}")
    if strict:
        _check_same(state, own)
    return state


def _check_same(state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise StateError if a state belongs to other data, or to other steps."""
    for key, difference in (
        ("data", "other data (the paths or labels differ)"),
        ("pipeline", "another pipeline (its steps or their parameters differ)"),
        ("batch", "another batch stage (its steps or their parameters differ)"),
    ):
        theirs, mine = state.get(key), own.get(key)
        if theirs != mine:
            raise StateError(
                f"the state belongs to {difference}: {key} {theirs or 'none'} there, "
                f"{mine or 'none'} here; strict=False goes on all the same"
            )
