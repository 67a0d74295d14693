"""Finding: the result of one check of `gpupipe doctor`, and the rules that make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: The checked part of the system, such as the cache folder.
        observation: The result as text, such as a version.
        status: "ok", or how serious the result is.
        advice: What the user can do about it, or "".
    """

    subject: str
    observation: str
    status: Status = "ok"
    advice: str = ""


def judge(
    subject: str, observation: str, *rules: tuple[object, Status, str, str], advice: str = ""
) -> Finding:
    """Judge an observation by the first rule whose condition is true.

    Example:
        >>> judge("cores", "1 usable", (cores < 2, "warning", "", "give the process 2 or more"))

    Args:
        subject: What was checked.
        observation: What it is.
        *rules: (condition, status, observation, advice) of the cases that are not sufficient, or
            that have another observation. "" stands for `observation`.
        advice: What would be better, though it is not needed, if no rule applies.
    """
    for condition, status, other, remedy in rules:
        if condition:
            return Finding(subject, other or observation, status, remedy)
    return Finding(subject, observation, advice=advice)
