"""Indexes that were made before, in the cache folder, as long as what they were made from is as it
was.
"""

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


def place(*key: Any) -> Path:
    """The file for the index of what `key` says: plain JSON, and paths."""
    text = json.dumps(key, default=str).encode()  # ASCII, whatever bytes stand in paths
    return cache_dir() / "index" / f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.idx"


def cached(
    saved: Path,
    files: Sequence[Path],
    read: Callable[[], Index],
    also: Callable[[Index], bool] = lambda index: True,
) -> Index:
    """The index in the file `saved`, else what `read` makes, which is then saved there for the next
    time.

    files: what it is made from; where one of them changed, it is read anew. also: what else must
    hold of a saved one. Raises OSError.
    """
    state, started = [index_file.file_state(file) for file in files], time.time()
    index = index_file.open_saved(saved)
    if index is None or index.extra.get("files") != state or not also(index):
        made = read()
        index = replace(made, extra=made.extra | {"files": state})
        index_file.keep(index, saved, max(max(times[:2]) for times in state), started)
    return index
