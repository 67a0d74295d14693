"""Examines all files of a data set on all cores, and saves the results part by part.

A part is up to 256 rows. It is saved in the cache folder as soon as it is done, so a scan that was
interrupted goes on where it ended, and a second scan reads only the parts with changed files.
"""

import hashlib
import json
import time
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.config import Config
from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.dataset.index_cache import RACY_SECONDS
from gpupipe.dataset.reading import read_states
from gpupipe.errors import GpupipeError
from gpupipe.inspection.examine import FACTS, Examiner
from gpupipe.loading.sample_selection import select_samples
from gpupipe.runtime.files import cache_dir, write_atomically
from gpupipe.runtime.progress import Progress
from gpupipe.runtime.ranks import cores

_VERSION = 3
"""Changes with what `examine` computes: older parts are then not used."""
_ROWS, _MIN_ROWS, _PARTS = 256, 8, 64
"""The most and the fewest rows of a part. A small data set has 64 parts, for all cores."""


@dataclass(frozen=True)
class Scan:
    """What is known of all files of a data set.

    Attributes:
        name: "train" or "val".
        index: The samples: those of `loader.subset`, or those that are in a growing cache.
        ids: The row of each sample in the index of the whole data set, (N,).
        field: The field whose files were examined.
        channels: How many channels the pixels have: 3, or 1 for gray images.
        facts: The FACTS of each row, (N,).
        errors: Why a row cannot be decoded, for rows that cannot.
        headers_only: Whether only headers were read.
    """

    name: str
    index: Index
    ids: NDArray[np.int64]
    field: str
    channels: int
    facts: NDArray[Any]
    errors: dict[int, str]
    headers_only: bool

    @property
    def sizes(self) -> NDArray[np.int32]:
        """[height, width] of each image as stored, (N, 2); 0 if it is not known."""
        return np.stack([self.facts["height"], self.facts["width"]], 1)

    @property
    def pixels(self) -> NDArray[np.int64]:
        """The rows whose pixels were decoded."""
        return np.flatnonzero(self.facts["has_pixels"])


def scan(name: str, config: Config, index: Index, headers_only: bool, progress: Progress) -> Scan:
    """Examine all files of a data set, except those that were examined before.

    Args:
        name: "train" or "val", for messages.
        config: The config.
        index: The samples of its data set.
        headers_only: Whether to read headers alone.
        progress: Called with an activity, the number of rows done, and all rows.

    Raises:
        GpupipeError: The data are no image files.
        EngineError: The machine failed.
    """
    field = index.main
    column = index.columns[field]
    if column.array is not None:
        raise GpupipeError(f"{config.name}: '{field}' holds arrays; inspect looks at image files")
    ids = config.source.find_available_rows(index)  # of a growing cache
    ids = select_samples(config, index).rows if ids is None else ids
    if ids is None:
        ids = np.arange(len(index))
    else:
        index = index.subset(ids)
        column = index.columns[field]
    step: Any = next((entry.step for entry in config.pipeline.entries_on(field)), None)
    mode = getattr(step, "mode", "rgb")
    examiner = Examiner(column, mode, config.source.max_pixels, headers_only)
    key = [_VERSION, index.fingerprint, index.root, field, mode, examiner.max_pixels, headers_only]
    folder = cache_dir() / "inspect" / _hash(json.dumps(key).encode())
    with suppress(OSError):  # a cache that cannot be written is left out
        folder.mkdir(parents=True, exist_ok=True)
    facts, errors, done = np.zeros(len(index), FACTS), {}, 0
    for rows, part, failed in _iterate_parts(examiner, folder, len(index)):
        facts[rows.start : rows.stop] = part
        errors.update(failed)
        done += len(rows)
        progress(f"inspecting {name}", done, len(index))
    channels = 1 if mode == "gray" else 3
    return Scan(name, index, ids, field, channels, facts, errors, headers_only)


_Part = tuple[range, NDArray[Any], dict[int, str]]


def _iterate_parts(examiner: Examiner, folder: Path, count: int) -> Iterator[_Part]:
    """Yield the parts, in order: their rows, the FACTS of these, and why some are broken."""
    size = min(_ROWS, max(_MIN_ROWS, count // _PARTS))
    parts = [range(n, min(n + size, count)) for n in range(0, count, size)]
    with ThreadPoolExecutor(cores(), "gpupipe-inspect") as pool:
        try:
            yield from pool.map(lambda rows: _load_or_examine(examiner, folder, rows), parts)
        except BaseException:  # an error, or Ctrl-C, must not wait for all other parts
            pool.shutdown(cancel_futures=True)
            raise


def _load_or_examine(examiner: Examiner, folder: Path, rows: range) -> _Part:
    saved, started = folder / f"{rows.start}-{rows.stop}.npz", time.time()
    state, newest = _read_state(examiner.column, rows)
    if (part := _load(saved, state, rows)) is not None:
        return part
    facts, errors = examiner.examine(rows)
    if newest < (started - RACY_SECONDS) * 1e9:
        with suppress(OSError), write_atomically(saved) as temporary, temporary.open("wb") as file:
            content = np.frombuffer(json.dumps(errors).encode(), np.uint8)
            np.savez(file, facts=facts, errors=content, state=np.array(state))
    return rows, facts, errors


def _read_state(column: Column, rows: range) -> tuple[str, int]:
    """Return a text that changes when a file of the rows does, and the latest change in ns."""
    spans = [column.span(row) for row in rows]
    paths = list(dict.fromkeys(span.path for span in spans if span is not None))
    states = read_states(paths)
    newest = max((state[1] for state in states if state is not None), default=0)
    return _hash(json.dumps([paths, states]).encode()), newest


def _load(saved: Path, state: str, rows: range) -> _Part | None:
    """Return a part that was saved; None if there is none, or a file has changed since."""
    try:
        with saved.open("rb") as file, np.load(file, allow_pickle=False) as part:
            facts, errors = part["facts"], json.loads(part["errors"].tobytes())
            if str(part["state"]) != state or facts.dtype != FACTS or len(facts) != len(rows):
                return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return rows, facts, {int(row): str(error) for row, error in errors.items()}


def _hash(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()
