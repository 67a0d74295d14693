"""Samples that cannot be read or decoded: which they are, why, and how many are too many."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpupipe.cachedir import cache_dir
from gpupipe.engines.base import Job
from gpupipe.errors import SampleError, TooManyBadError

_JPEG = b"\xff\xd8\xff"
_END_OF_JPEG = b"\xff\xd9"
_MAGIC = {_JPEG: "JPEG", b"\x89PNG\r\n\x1a\n": "PNG", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"RIFF": "WebP", b"\0\0\0\x0cjP": "JPEG 2000"}
_NETPBM = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")
_TAIL_BYTES = 64


class Quarantine:
    """The samples of a job that were left out."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._bad: set[int] = set()
        self.file = job.loader.quarantine or cache_dir() / "quarantine" / f"{job.index.fingerprint}.jsonl"

    def __len__(self) -> int:
        return len(self._bad)

    def good(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids that are not known to be bad."""
        if not self._bad:
            return ids
        return ids[[int(i) not in self._bad for i in ids]]

    def add(self, id: int, reason: str) -> None:
        """Leave a sample out from now on. Raises SampleError under on_error: raise, TooManyBadError above max_bad."""
        path = self._job.index.path(id)
        if self._job.loader.on_error == "raise":
            raise SampleError(path, reason)
        self._bad.add(id)
        self._write({"path": path, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        limit = self._job.loader.max_bad * len(self._job.index)
        if len(self._bad) > limit:
            raise TooManyBadError(
                f"{len(self._bad)} of {len(self._job.index)} samples cannot be read, more than loader.max_bad={self._job.loader.max_bad:g} allows "
                f"({limit:g}); the last is {path}: {reason}. All are listed in {self.file}"
            )

    def _write(self, record: dict[str, str]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8", errors="surrogateescape") as f:
            f.write(json.dumps(record) + "\n")


def suspects(paths: Iterable[str]) -> list[bool]:
    """Which files look broken from outside: missing, empty, of no known format, or a JPEG without its end. Not yet a verdict."""
    return [bool(suspicion(p)) for p in paths]


def suspicion(path: str) -> str:
    """What looks wrong with an image file from its first and last bytes, or ""."""
    try:
        with open(path, "rb") as f:
            head = f.read(16)
            size = f.seek(0, 2)
            f.seek(max(0, size - _TAIL_BYTES))
            tail = f.read()
    except OSError as e:
        return (e.strerror or str(e)).lower()
    if not head:
        return "the file is empty"
    if not head.startswith((*_MAGIC, *_NETPBM)):
        return f"not an image in a known format (it begins with {head!r})"
    if head.startswith(_JPEG) and _END_OF_JPEG not in tail:
        return f"a JPEG that was cut off: its end marker is missing ({size:,} bytes)"
    return ""


def reason(path: str, message: str) -> str:
    """Why a sample failed, in a line: what its file shows, else the first telling line of the engine's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    said = next((line for line in telling if not line.startswith(("Critical error", "Error in", "C++ context", "Current pipeline"))), "no reason given")
    return suspicion(path) or f"cannot be decoded or transformed: {said.removeprefix('Error: ')}"
