"""The state of a loader: fingerprints of data and pipeline, a history, and skipped samples."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from gpupipe.engines.bad_samples import list_skipped
from gpupipe.engines.base import Engine
from gpupipe.errors import StateError, counted, short
from gpupipe.loading.assembly import LoaderParts
from gpupipe.loading.content_sample import find_difference, sample_content
from gpupipe.sampling.selection import DEFAULTS

_log = logging.getLogger("gpupipe")
_MAX_HISTORY, _MAX_SKIPPED = 32, 1000
_VERSION = 2
_VERSIONS = (1, _VERSION)
"""The versions that can be loaded. Version 1 has only the keys of `_IS_VALID` up to "shuffle"."""
_EXPECTED = "load_state_dict() takes the dict that state_dict() of a loader returned"
_ENTRY = ("step", "epoch", "position", "world_size", "batch_size")
"""Keys of an entry of the history."""


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_entry(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_count(value.get(key)) for key in _ENTRY)


_IS_VALID: dict[str, Callable[[Any], bool]] = {
    "version": _is(int),
    "data": _is(str),
    "pipeline": _is(str),
    "batch": _is(str),
    "seed": _is(int),
    "shuffle": _is(bool),
    "step": _is_count,
    "content": lambda value: isinstance(value, Mapping),
    "functions": lambda value: isinstance(value, Mapping),
    "skipped": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "history": lambda value: isinstance(value, list) and all(map(_is_entry, value)),
}


_DIFFERENCES = {
    "data": "other data (the paths or labels differ)",
    "pipeline": "another pipeline (its steps or their parameters differ)",
    "batch": "another batch stage (its steps or their parameters differ)",
}
"""For error messages: the difference between two states with different values of a key."""


def check_state(state: object, own: Mapping[str, Any], strict: bool) -> Mapping[str, Any]:
    """Return `state` if it is a valid state and fits a loader; otherwise raise StateError.

    Args:
        state: The argument of load_state_dict().
        own: The loader's own state. `state` must have its keys, except those with a default.
        strict: Whether the state must belong to the same data and pipeline.
    """
    if not isinstance(state, Mapping):
        actual = "None" if state is None else f"a {type(state).__name__}"
        raise StateError(f"{_EXPECTED}, and not {actual}")
    missing = [key for key in own if key not in state and key not in (*DEFAULTS, "batch")]
    if missing:
        keys = ", ".join(repr(key) for key in state)
        contents = f"that has {short(keys)}" if keys else "that is empty"
        raise StateError(f"{_EXPECTED}, and not one {contents}: it lacks {missing[0]!r}")
    version = state["version"]
    if type(version) is int and version not in _VERSIONS:
        raise StateError(f"the state is of another version of gpupipe: {version}, not {_VERSION}")
    for key, is_valid in _IS_VALID.items():
        if key in state and not is_valid(state[key]):
            raise StateError(f"{_EXPECTED}, and not one whose {key!r} is {short(repr(state[key]))}")
    for key, difference in _DIFFERENCES.items():
        theirs, mine = state.get(key), own.get(key)
        if strict and theirs != mine:
            raise StateError(
                f"the state belongs to {difference}: {key} {theirs or 'none'} there, "
                f"{mine or 'none'} here; strict=False goes on all the same"
            )
    return state


class RunState:
    """Makes the states of a loader, and checks the states that a user loads into it.

    Args:
        parts: The config, the samples, their order and the engine.
    """

    def __init__(self, parts: LoaderParts) -> None:
        self._index, self._engine = parts.index, parts.engine
        self._identity = {
            "version": _VERSION,
            "data": parts.index.fingerprint,
            "pipeline": parts.config.pipeline.fingerprint,
        }
        if batch := parts.config.batch.fingerprint:
            self._identity["batch"] = batch
        self._settings = {
            "world_size": parts.sampler.world_size,
            "batch_size": parts.sampler.batch_size,
        }
        self._offset = 0
        """The step of the run minus the number of batches that this loader delivered."""
        self._history = [{"step": 0, "epoch": 0, "position": 0} | self._settings]
        self._skipped: set[int] = set()
        """The rows that the run skipped before its state was loaded here."""

    def make(self, position: Mapping[str, Any], delivered: int) -> dict[str, Any]:
        """Return a state, as plain JSON.

        Args:
            position: The sampler's state.
            delivered: How many batches the loader delivered so far.
        """
        skipped = sorted(self._skipped.union(list_skipped(self._engine)))
        return {
            **self._identity,
            **position,
            "step": self._offset + delivered,
            "content": self._content,
            "functions": {},  # hashes of the user's functions, by name
            "skipped": skipped[:_MAX_SKIPPED],
            "history": list(self._history),
        }

    def check(self, state: object, position: Mapping[str, Any], strict: bool) -> None:
        """Raise StateError if `state` is not a state, or does not fit the loader.

        Args:
            state: The argument of load_state_dict().
            position: The sampler's state.
            strict: Whether the state must belong to the same data and pipeline.
        """
        checked = check_state(state, {**self._identity, **position}, strict)
        content = checked.get("content")
        if not strict or not content or not self._content:
            return
        difference = find_difference(content, self._content, self._index)
        if difference:
            raise StateError(
                f"the state belongs to other data (names and labels are the same): {difference}; "
                "strict=False goes on all the same"
            )

    def resume(self, state: Mapping[str, Any], position: Mapping[str, Any], delivered: int) -> None:
        """Take over the step, history and skipped rows of a checked state; log the skipped rows.

        Args:
            state: The state.
            position: The sampler's state after it was loaded.
            delivered: How many batches the loader delivered so far.
        """
        step = state.get("step", 0)
        self._offset = step - delivered
        now = {"step": step} | {key: position[key] for key in ("epoch", "position")}
        history = [dict(entry) for entry in state.get("history", ())]
        if not history or history[-1] != history[-1] | self._settings:
            history.append(now | self._settings)
        self._history = history[:1] + history[1:][1 - _MAX_HISTORY :]
        skipped = state.get("skipped", ()) if state["data"] == self._identity["data"] else ()
        self._skipped = {row for row in skipped if row < len(self._index)}
        if self._skipped:
            count, first = counted(len(self._skipped), "sample"), min(self._skipped)
            _log.warning(
                "the run that the state is of skipped %s, the first of them %s",
                count,
                self._index.location(first),
            )

    @cached_property
    def _content(self) -> dict[str, Any]:
        """The sizes and hashes of some rows, from `sample_content`; {} if a server reads them."""
        return sample_content(self._index) if isinstance(self._engine, Engine) else {}
