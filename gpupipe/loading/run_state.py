"""What a state holds beside the position: the data's identity, a history, and skipped samples."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gpupipe.engines.bad_samples import list_skipped
from gpupipe.engines.base import Engine
from gpupipe.errors import StateError, counted
from gpupipe.loading.assembly import LoaderParts
from gpupipe.loading.content_sample import find_difference, sample_content
from gpupipe.loading.resume import check_state, identify

_log = logging.getLogger("gpupipe")
_MAX_HISTORY = 32
_MAX_SKIPPED = 1000


class RunState:
    """Makes the states of a loader, and checks those that it gets.

    Args:
        parts: The config, the samples, their order and the engine.
    """

    def __init__(self, parts: LoaderParts) -> None:
        self._index, self._engine = parts.index, parts.engine
        self._identity = identify(parts.config, parts.index)
        self._settings = {
            "world_size": parts.sampler.world_size,
            "batch_size": parts.sampler.batch_size,
        }
        self._offset = 0
        """The step of the run, less the batches that this loader delivered."""
        self._history = [{"step": 0, "epoch": 0, "position": 0} | self._settings]
        self._skipped: set[int] = set()
        """The rows that were skipped before the loaded state."""

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
        """Raise StateError if a state is none, or does not fit the loader.

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
        """Take over what a checked state says of the run so far, and log which rows it skipped.

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
        self._skipped = set()
        if state["data"] == self._identity["data"]:
            self._skipped = {row for row in state.get("skipped", ()) if row < len(self._index)}
        if self._skipped:
            first = self._index.location(min(self._skipped))
            _log.warning(
                "the run that the state is of skipped %s, the first of them %s",
                counted(len(self._skipped), "sample"),
                first,
            )

    @cached_property
    def _content(self) -> dict[str, Any]:
        """The sample of the data's contents; {} if they are read by a server."""
        return sample_content(self._index) if isinstance(self._engine, Engine) else {}
