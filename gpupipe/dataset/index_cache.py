"""Saved indexes in the cache folder, valid as long as their files are unchanged."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpupipe.dataset import index_file
from gpupipe.dataset.index import Index
from gpupipe.runtime.cache_dir import cache_dir


def get_path(*key: Any) -> Path:
    """Return the path at which to save the index that `key` (plain JSON, paths) identifies."""
    text = json.dumps(key, default=str).encode()  # ASCII, whatever bytes the paths hold
    return cache_dir() / "index" / f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.idx"


def load_or_build(
    saved: Path,
    files: Iterable[str | Path],
    read: Callable[[], Index],
    also: Callable[[Index], bool] = lambda index: True,
    previous: Index | None = None,
    columns: index_file.Columns = index_file.BASIC_COLUMNS,
) -> Index:
    """Return an earlier index if it is still valid, else read it and save it.

    Args:
        saved: The file of the index.
        files: The files that the index is built from. If one changed, the index is read again.
        read: Builds the index.
        also: A further condition that a saved index must meet.
        previous: The index that this process has built before, if any.
        columns: The classes that columns may have.

    Raises:
        OSError: One of `files` cannot be read.
    """
    (state, newest), started = _get_state(files), time.time()
    for index in (previous, index_file.open_saved(saved, columns)):
        if index is not None and index.extra.get("files") == state and also(index):
            return index
    index = read()
    index = replace(index, extra=index.extra | {"files": state})
    index_file.keep(index, saved, newest, started, columns)
    return index


def _get_state(files: Iterable[str | Path]) -> tuple[str, int]:
    """Return a hash of the files' names and states, and the latest change in ns.

    A hash keeps the saved index small: there may be a million files.
    """
    digest, newest = hashlib.blake2b(digest_size=16), 0
    for file in files:
        state = index_file.file_state(file)
        newest = max(newest, *state[:2])
        digest.update(os.fsencode(file) + repr(state).encode())
    return digest.hexdigest(), newest
