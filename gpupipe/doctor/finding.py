"""Finding: the result of one check of `gpupipe doctor`, and the rules that make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


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
    status: Status = "ok"
    advice: str = ""


def judge(
    subject: str, observation: str, *rules: tuple[object, str, Status, str], advice: str = ""
) -> Finding:
    """Judge an observation by the first rule whose condition is true.

    Args:
        subject: What was checked.
        observation: What it is if no rule applies: that is sufficient.
        *rules: (condition, observation, status, advice) of the other cases.
        advice: What would be better, though it is not needed, if no rule applies.
    """
    verdicts = (Finding(subject, *rule[1:]) for rule in rules if rule[0])
    return next(verdicts, Finding(subject, observation, advice=advice))
