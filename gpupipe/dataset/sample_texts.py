"""Reads labels and values from the small members of a tar shard, which are text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.errors import shown
from gpupipe.formats.tar import Member
from gpupipe.schema.field_types import is_number

_MAX_TEXT = 1 << 20
"""Upper limit of the size of a member with a label or values, in bytes."""
_MAX_VALUES = 1024


@dataclass(frozen=True)
class SampleTexts:
    """Reads the small members of a sample, which hold its label and values."""

    data: NDArray[np.uint8]
    stem: str
    parts: dict[str, Member]

    def read(self, where: str) -> Any:
        """Read the member "ENDING" as text, or "ENDING:KEY" as JSON. Raises ValueError."""
        ending, _, key = where.partition(":")
        member = self.parts.get(ending)
        if member is None:
            raise ValueError(
                f"{self.stem}: no member {self.stem}.{ending} (it has "
                f"{', '.join(sorted(self.parts))}): set data.label or data.values"
            )
        if member.size > _MAX_TEXT:
            raise ValueError(
                f"{member.name}: {member.size:,} bytes, too many for a label or values"
            )
        content = self.data[member.offset : member.offset + member.size].tobytes()
        try:
            return json.loads(content)[key] if key else content.decode().strip()
        except KeyError as e:
            raise ValueError(f"{member.name}: no '{key}' in it") from e
        except (ValueError, TypeError, IndexError, RecursionError) as e:
            raise ValueError(
                f"{member.name}: cannot be read as "
                f"{'JSON with keys' if key else 'UTF-8 text'}: {str(e)[:100]}"
            ) from e

    def read_numbers(self, where: str) -> list[int | float]:
        """Read one number or a list of numbers, located as in `read`. Raises ValueError."""
        value = self.read(where)
        if isinstance(value, str):
            value = _parse_number(value)
        numbers = value if isinstance(value, list) else [value]
        if not 0 < len(numbers) <= _MAX_VALUES or not all(
            is_number(n) and (isinstance(n, float) or -(2**63) <= n < 2**63) for n in numbers
        ):
            raise ValueError(
                f"{self.stem}: {shown(value)} at {where} is no number, and no list of 1 to "
                f"{_MAX_VALUES:,} numbers: set data.values"
            )
        return numbers


def _parse_number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def read_label(texts: SampleTexts, where: str) -> str:
    """Read a label, a number or a name, as text. Raises ValueError."""
    label = texts.read(where)
    if isinstance(label, bool) or not isinstance(label, (int, str)) or label == "":
        raise ValueError(
            f"{texts.stem}: {shown(label)} at {where} is no label: a label is a number from "
            "0 on, or a name"
        )
    return str(label)


def stack_values(name: str, rows: Sequence[list[int | float]]) -> NDArray[Any]:
    """Stack the numbers of all samples, int64 or float64; (N,) if each has one, else (N, n).

    Raises ValueError if samples differ in the number of numbers.
    """
    counts = {len(numbers) for numbers in rows}
    if len(counts) > 1:
        raise ValueError(
            f"the value '{name}' has from {min(counts)} to {max(counts)} numbers: it must "
            "have as many in each sample"
        )
    array = np.array(
        rows,
        np.int64 if all(isinstance(n, int) for numbers in rows for n in numbers) else np.float64,
    )
    return array[:, 0] if counts == {1} else array
