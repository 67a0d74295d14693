"""The state of a loader: fingerprints of data and pipeline, a history, and skipped samples.

Names and labels can be equal although the files differ, such as after images are prepared again at
another size or quality. So a state holds a sample of the content: the sizes of up to 1,000 rows,
and hashes of the first 64 KiB of up to 32 of them. The choice of rows depends only on the index's
fingerprint, so every rank and every later run checks the same rows. Modification times do not
count, because cp, git and rsync change them.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.engines.bad_samples import list_skipped
from gpupipe.engines.base import Engine
from gpupipe.errors import StateError, counted, short
from gpupipe.loading.assembly import LoaderParts
from gpupipe.pipeline.user_calls import hash_functions, warn_of_changes
from gpupipe.sampling.selection import DEFAULTS

_log = logging.getLogger("gpupipe")
_MAX_HISTORY, _MAX_SKIPPED = 32, 1000
_MAX_ROWS, _MAX_HASHES = 1000, 32
_HEAD_BYTES = 1 << 16
_VERSION = 2
_VERSIONS = (1, _VERSION)
"""The versions that can be loaded. Version 1 has only the keys of `_IS_VALID` up to "shuffle"."""
_EXPECTED = "load_state_dict() takes the dict that state_dict() of a loader returned"
_ENTRY = ("step", "epoch", "position", "world_size", "batch_size")
"""Keys of an entry of the history."""


Cell = tuple[str, int]
"""The name of a field, and a row of the index."""


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
        own: The loader's own state. `state` must have the same keys, except those with a default.
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
        self._functions = hash_functions(parts.config.pipeline)
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
            "functions": self._functions,
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
            state: The saved state, which `check` has accepted.
            position: The sampler's state, after `state` was loaded into the sampler.
            delivered: How many batches the loader delivered so far.
        """
        warn_of_changes(state.get("functions"), self._functions)
        step = state.get("step", 0)
        self._offset = step - delivered
        now = {"step": step} | {key: position[key] for key in ("epoch", "position")}
        history = [dict(entry) for entry in state.get("history", ())]
        if not history or history[-1] != history[-1] | self._settings:
            history.append(now | self._settings)
        self._history = history[:1] + history[1:][1 - _MAX_HISTORY :]
        skipped = state.get("skipped", ()) if state["data"] == self._identity["data"] else ()
        self._skipped = set(skipped)
        if not self._index.is_growing:
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
        """The sizes and hashes of some rows, from sample_content().

        {} if a server has the data, or if samples come and go.
        """
        has_rows = isinstance(self._engine, Engine) and not self._index.is_growing
        return sample_content(self._index) if has_rows else {}


def sample_content(index: Index) -> dict[str, Any]:
    """Return the sizes and hashes of some rows, as plain JSON.

    A row that is missing or cannot be read has None. The function downloads nothing: rows of a
    remote data set have the sizes of its listing, and no hashes, so that ranks with different
    caches agree. It also reads no column in which a read decodes a whole row group. If a column
    stores no sizes, only the hashed rows have sizes.

    Returns:
        {"sizes": [bytes, ...], "hashes": [hexadecimal, ...]}, a few kB.
    """
    cells = _choose_cells(index)
    sizes = _get_sizes(index, cells)
    hashes: list[str | None] = []
    for n in _iterate_hashed(len(cells)):
        field, row = cells[n]
        size, digest = _hash_head(index.columns[field], row)
        hashes.append(digest)
        if sizes[n] is None:
            sizes[n] = size
    return {"sizes": sizes, "hashes": hashes}


def find_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], index: Index) -> str:
    """Describe how the data has changed since a state was saved; "" if it has not.

    Args:
        theirs: The sizes and hashes in the state, from `sample_content`.
        ours: The sizes and hashes of the current data, from `sample_content`.
        index: The index of the data.
    """
    cells = _choose_cells(index)
    hashed = [cells[n] for n in _iterate_hashed(len(cells))]
    sizes = _list_differences(theirs.get("sizes"), ours["sizes"], cells)
    hashes = _list_differences(theirs.get("hashes"), ours["hashes"], hashed)
    if sizes:
        (field, row), then, now = sizes[0]
        difference = f"{index.location(row, field)} had {then:,} bytes, and has {now:,} now"
    elif hashes:
        (field, row), _, _ = hashes[0]
        difference = f"{index.location(row, field)} has the size that it had, but other content"
    else:
        return ""
    checked = len(cells) if sizes else len(hashed)
    return (
        f"{difference}; of {checked:,} samples that were compared, {len(sizes or hashes):,} differ"
    )


def _list_differences(
    theirs: Any, ours: list[Any], cells: list[Cell]
) -> list[tuple[Cell, Any, Any]]:
    """Return (cell, their value, our value) of each cell whose two values are known and differ."""
    if not isinstance(theirs, list) or len(theirs) != len(ours):
        return []
    return [
        (cell, then, now)
        for cell, then, now in zip(cells, theirs, ours, strict=True)
        if type(then) is type(now) and then != now
    ]


def _choose_cells(index: Index) -> list[Cell]:
    """Choose up to 1,000 rows, always the same for one fingerprint; the rows' fields take turns."""
    rows: Any = range(len(index))
    if len(index) > _MAX_ROWS:
        bits = hashlib.shake_256(index.fingerprint.encode()).digest(8 * _MAX_ROWS)
        rows = np.unique(np.frombuffer(bits, "<u8") % np.uint64(len(index))).tolist()
    fields = list(index.columns)
    return [(fields[n % len(fields)], row) for n, row in enumerate(rows)]


def _iterate_hashed(count: int) -> Iterator[int]:
    """Yield the positions of the cells to hash: up to 32 of `count` cells, at equal distances."""
    return iter(range(0, count, max(1, -(-count // _MAX_HASHES))))


def _get_sizes(index: Index, cells: list[Cell]) -> list[int | None]:
    sizes: list[int | None] = [None] * len(cells)
    for field, column in index.columns.items():
        positions = [n for n, cell in enumerate(cells) if cell[0] == field]
        rows = np.array([cells[n][1] for n in positions], np.int64)
        for n, size in zip(positions, column.get_sizes(rows), strict=True):
            sizes[n] = size
    return sizes


def _hash_head(column: Column, row: int) -> tuple[int | None, str | None]:
    """Return the size of a row and the hash of its first 64 KiB; None and None if unknown."""
    with suppress(Exception):  # of any plugin: the engine reports the row when it reads it
        if column.can_sample:
            head, _, size = column.read_ends(row, _HEAD_BYTES, 0)
            return size, hashlib.blake2b(head, digest_size=8).hexdigest()
    return None, None
