"""Why a sample failed, in one line: from the engine's message, and from the bytes of its file.

explain_sample_failure ─> find_cause        the line of the message that states a cause
                       └> describe_damage   damage that the file's first and last bytes show
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column
from gpupipe.dataset.index import Index
from gpupipe.decoders.image_header import read_header
from gpupipe.errors import describe_error
from gpupipe.runtime.failures import machine_errors

_END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND", "JPEG 2000": b"\xff\xd9"}
_TAIL_BYTES = 64
_UNINFORMATIVE = (
    "Failed to decode",
    "nvImageCodec failure",
    "the file is empty",
    "not an image in a known format",
    "a JPEG that was cut off",  # raised by jpeg_checks.py, and repeated by `describe_damage`
    "Image is incomplete or truncated",
    'Assert on "fp_ != nullptr" failed',
    'Assert on "read_nbytes == file_size" failed',
)
"""Prefixes of messages that name no cause. `describe_damage` then explains as much, or more."""


def find_suspects(index: Index, ids: NDArray[np.int64]) -> list[bool]:
    """Return for each sample whether the first and last bytes of one of its files look broken.

    Such a sample may still decode. So the engine runs it alone before it reports it as bad.
    """
    return [
        any(describe_damage(column, int(i)) for column in _image_columns(index).values())
        for i in ids
    ]


def _image_columns(index: Index) -> dict[str, Column]:
    """Return the columns of image files, by field."""
    return {name: column for name, column in index.columns.items() if column.array is None}


def explain_sample_failure(index: Index, id: int, message: str) -> str:
    """Return why a sample failed, in one line.

    The line is about the first image field whose file looks broken, else the first image field.

    Args:
        index: The index of the samples.
        id: The sample's row in the index.
        message: The engine's message.
    """
    columns = _image_columns(index)
    if not columns:
        return find_cause(message)
    damaged = (name for name, column in columns.items() if describe_damage(column, id))
    field = next(damaged, next(iter(columns)))
    where = f"its {field}, {index.location(id, field)}: " if field != index.main else ""
    return where + explain_image_failure(columns[field], id, message)


def describe_damage(column: Column, row: int) -> str:
    """Describe the damage that an image file's first and last bytes show; "" if they look right.

    It detects files that are missing, empty, too short, of no known format, or cut off.

    Raises:
        EngineError: The process lacks memory or open files, so that the file cannot be read.
    """
    try:
        with machine_errors():
            head, tail, size = column.read_ends(row, 16, _TAIL_BYTES)
    except (OSError, ValueError) as e:
        return describe_error(e)
    if not head:
        return "the file is empty"
    kind = read_header(head).format
    if not kind:
        return f"not an image in a known format (it begins with {head!r})"
    if _is_cut_off(kind, head, tail, size):
        return f"a {kind} that was cut off: its end is missing ({size:,} bytes are there)"
    return ""


def _is_cut_off(kind: str, head: bytes, tail: bytes, size: int) -> bool:
    """Whether a file lacks its format's end marker, or is shorter than its header states."""
    if kind == "BMP":
        return size < int.from_bytes(head[2:6], "little")
    if kind == "WebP":
        return size < int.from_bytes(head[4:8], "little") + 8
    return _END_MARKERS.get(kind, b"") not in tail


def explain_image_failure(column: Column, row: int, message: str) -> str:
    """Return why a sample failed, in one line, from the engine's message and the file's bytes.

    Args:
        column: The column of the image file.
        row: The row of the image file in the column.
        message: The engine's message.
    """
    line, suspected = find_cause(message), describe_damage(column, row)
    if not line.startswith(_UNINFORMATIVE) and line != suspected:
        return f"cannot be decoded or transformed: {line}" + (
            f" ({suspected})" if suspected else ""
        )
    return (
        suspected
        or "cannot be decoded: its data are damaged, or of a kind that the decoder does not know "
        f"({line.rstrip(' :')})"
    )


_TORCHVISION_SOURCE = re.compile(r"^\w+, \S+\.cpp:\d+, ")
"""The prefix of torchvision's errors that names a C++ file and line; `find_cause` removes it."""


def find_cause(message: str) -> str:
    """Return the first line of an engine's message that states a cause.

    It skips DALI's preamble, such as "Critical error in pipeline" and "Error in CPU operator".
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    candidates = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    cause = next(
        (
            line
            for line in candidates
            if not line.startswith(
                ("Critical error", "Error in", "C++ context", "Current pipeline")
            )
        ),
        "no reason given",
    )
    return _TORCHVISION_SOURCE.sub("", cause.removeprefix("Error: "))
