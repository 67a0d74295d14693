"""Samples that cannot be read or decoded: which they are, why, and how many are too many."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.byte_range import Span, missing
from gpupipe.dataset.index import Column, Index
from gpupipe.engines.base import LoadSpec
from gpupipe.errors import DataError, EngineError, GpupipeError, SampleError, TooManyBadError
from gpupipe.formats.image_header import read_header
from gpupipe.runtime.cache_dir import cache_dir
from gpupipe.runtime.machine_failures import machine_errors
from gpupipe.sampling.sampler import Plan

_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "JPEG 2000": b"\xff\xd9"}
_TAIL_BYTES = 64
_SAYS_NOTHING = (
    "Failed to decode",
    "nvImageCodec failure",
    "the file is empty",
    "not an image in a known format",
    "a JPEG that was cut off",  # jpeg_end.py's own words, which `suspicion` repeats
    'Assert on "fp_ != nullptr" failed',
    'Assert on "read_nbytes == file_size" failed',
)
"""Messages that name no cause: what the file itself shows tells as much, or more."""

_LOST_STEP = (
    "every sample of a batch was skipped, and this rank would have fewer steps than the "
    "others: make loader.batch_size larger"
)


class Quarantine:
    """The samples of a job that were left out."""

    settings = frozenset({"on_error", "max_bad", "quarantine"})
    """Of `loader:`."""

    def __init__(self, job: LoadSpec) -> None:
        self._job = job
        self._bad: set[int] = set()
        self._last = ""
        self.refusal: GpupipeError | None = None
        self.file = (
            job.loader.quarantine or cache_dir() / "quarantine" / f"{job.index.fingerprint}.jsonl"
        )

    def __len__(self) -> int:
        return len(self._bad)

    def good(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids that are not known to be bad."""
        if not self._bad:
            return ids
        return ids[[int(i) not in self._bad for i in ids]]

    def without_bad(self, plans: Iterator[Plan]) -> Iterator[Plan]:
        """Plans without the samples that are known to be bad; those of which nothing is left are
        left out.

        Where that cannot go on they end, and `refusal` is why: for the engine to raise when all
        that comes before is delivered.
        """
        some = True
        for plan in plans:
            good = self.good(plan.ids)
            if len(good):
                some = True
                yield replace(plan, ids=good)
            elif self._job.loader.shard.world_size > 1:
                self.refusal = EngineError(_LOST_STEP)
            elif plan.last and not some:
                self.refusal = TooManyBadError(
                    f"every sample of epoch {plan.epoch} is one that was skipped before: "
                    f"see {self.file}"
                )
            if self.refusal is not None:
                return
            some = some and not plan.last

    def refuse_to_lose_a_step(self) -> None:
        """Raises EngineError where a batch that is left out would leave this rank with fewer steps
        than the others.
        """
        if self._job.loader.shard.world_size > 1:
            raise EngineError(_LOST_STEP)

    def add(self, id: int, reason: str) -> None:
        """Leave a sample out from now on.

        Raises SampleError under on_error: raise, TooManyBadError as `check`.
        """
        path = self._job.index.path(id)
        if self._job.loader.on_error == "raise":
            raise SampleError(path, reason)
        if id in self._bad:
            return
        self._write({"path": path, "reason": reason, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
        self._bad.add(id)
        self._last = f"{path}: {reason}"
        self.check()

    def check(self) -> None:
        """Raises TooManyBadError where more samples were left out than max_bad allows, or all of
        them.
        """
        bad, count, share = len(self._bad), len(self._job.index), self._job.loader.max_bad
        if bad > share * count:
            too_many = f"more than loader.max_bad={share:g} allows ({share * count:g})"
        elif bad and bad == count:
            too_many = "so nothing is left to deliver"
        else:
            return
        raise TooManyBadError(
            f"{bad} of {count} samples cannot be read, {too_many}; the last is "
            f"{self._last}. All are listed in {self.file}"
        )

    def _write(self, record: dict[str, str]) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as f:
                f.write(json.dumps(record) + "\n")
        except OSError as e:
            raise DataError(
                f"{record['path']}: {record['reason']}; it would be left out, but the list "
                f"of such samples, {self.file}, cannot be written "
                f"({e.strerror or e}): set loader.quarantine to a file that can"
            ) from e


def suspects(index: Index, ids: NDArray[np.int64]) -> list[bool]:
    """Which samples look broken from outside: a file missing, empty, of no known format, or a JPEG
    without its end. Not yet a verdict.
    """
    return [any(suspicion(column.span(int(i))) for column in _encoded(index)) for i in ids]


def _encoded(index: Index) -> list[Column]:
    return [column for column in index.columns.values() if column.array is None]


def blame(index: Index, id: int, message: str) -> str:
    """Why a sample failed, in a line: of the field that looks wrong where there are several, else
    of the first.
    """
    spans = {
        name: column.span(id) for name, column in index.columns.items() if column.array is None
    }
    wrong = next((name for name, span in spans.items() if suspicion(span)), next(iter(spans), ""))
    if not wrong:
        return telling_line(message)
    return (f"its {wrong}, {spans[wrong].path}: " if wrong != index.main else "") + reason(
        spans[wrong], message
    )


def suspicion(span: Span) -> str:
    """What looks wrong with an image from its first and last bytes, or "".

    Raises EngineError if it cannot be looked at for want of memory or of open files.
    """
    try:
        with machine_errors():
            head, tail, size = span.ends(16, _TAIL_BYTES)
    except OSError as e:
        return (e.strerror or str(e)).lower()
    if span.length is not None and size < span.length:
        return missing(span.path, span.length - size)
    if not head:
        return "the file is empty"
    kind = read_header(head).format
    if not kind:
        return f"not an image in a known format (it begins with {head!r})"
    if _cut_off(kind, head, tail, size):
        return f"a {kind} that was cut off: its end is missing ({size:,} bytes are there)"
    return ""


def _cut_off(kind: str, head: bytes, tail: bytes, size: int) -> bool:
    """Whether a file ends before its format's end marker, or before the size that its header
    states.
    """
    if kind == "BMP":
        return size < int.from_bytes(head[2:6], "little")
    if kind == "WebP":
        return size < int.from_bytes(head[4:8], "little") + 8
    return _END_MARKERS.get(kind, b"") not in tail


def reason(span: Span, message: str) -> str:
    """Why a sample failed, in a line: what its file shows, or the first telling line of the
    engine's message.
    """
    said, seen = telling_line(message), suspicion(span)
    if not said.startswith(_SAYS_NOTHING):
        return f"cannot be decoded or transformed: {said}" + (f" ({seen})" if seen else "")
    return (
        seen
        or "cannot be decoded: its data are damaged, or of a kind that DALI does not know "
        f"({said.rstrip(' :')})"
    )


_DTYPE = re.compile(
    r"(?:Unsupported|Not supported) (?:(?:input|data|output|input/output) "
    r")?types?\b|(?:element|data) type .*(?:is )?not supported"
    r"|accepts the following input types|accept only uint8 tensors"
)
_OF_FILES = ("nvidia.dali.fn.decoders.", "nvidia.dali.fn.peek_image_shape", "nvidia.dali.fn.io.")
"""Operators whose input is a file, which may well be of a kind that they do not take."""


def refused_dtype(message: str) -> str:
    """What an operator of DALI said if it refused the dtype of all samples, else ""."""
    said = telling_line(message)
    return (
        said
        if _DTYPE.search(said) and not any(operator in message for operator in _OF_FILES)
        else ""
    )


def telling_line(message: str) -> str:
    """The first telling line of an engine's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    said = next(
        (
            line
            for line in telling
            if not line.startswith(
                ("Critical error", "Error in", "C++ context", "Current pipeline")
            )
        ),
        "no reason given",
    )
    return said.removeprefix("Error: ")
