"""Finding: the result of one check of `gpupipe doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: What was checked.
        observation: What it is.
        status: Whether that is sufficient.
        advice: What to do if it is not.
    """

    subject: str
    observation: str
    status: Literal["ok", "warning", "problem"]
    advice: str = ""
