"""Saved indexes in the cache folder, valid as long as their files are unchanged."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
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
    files: Sequence[Path],
    read: Callable[[], Index],
    also: Callable[[Index], bool] = lambda index: True,
) -> Index:
    """Return the index saved in a file if it is still valid, else read it and save it there.

    Args:
        saved: The file of the index.
        files: The files that the index is built from. If one changed, the index is read again.
        read: Builds the index.
        also: A further condition that a saved index must meet.

    Raises:
        OSError: One of `files` cannot be read.
    """
    state, started = [index_file.file_state(file) for file in files], time.time()
    index = index_file.open_saved(saved)
    if index is None or index.extra.get("files") != state or not also(index):
        index = read()
        index = replace(index, extra=index.extra | {"files": state})
        index_file.keep(index, saved, max(max(times[:2]) for times in state), started)
    return index
