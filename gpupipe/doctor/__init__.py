"""Checks the machine, and reports each problem with advice.

`software_checks`, `gpu_checks` and `checks` hold the checks. Their functions check_* query the
machine; each of their pure functions judge_* turns answers into a `CheckResult`, by the rules of
`judge`. `checks.CHECKS` lists all checks. The command `gpupipe doctor` imports this folder. Start
reading in checks.py.
"""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of `gpupipe doctor`.

    Attributes:
        subject: The checked part of the system, such as the cache folder.
        observation: The result as text, such as a version.
        status: "ok", "warning" or "problem".
        advice: The advice to the user, or "".
    """

    subject: str
    observation: str
    status: Status = "ok"
    advice: str = ""


def judge(
    subject: str, observation: str, *rules: tuple[object, Status, str, str], advice: str = ""
) -> CheckResult:
    """Return the CheckResult of the first rule whose condition is true; "ok" if no rule applies.

    Examples:
        >>> judge("cores", "1 usable", (cores < 2, "warning", "", "give the process 2 or more"))

    Args:
        subject: The checked part of the system.
        observation: The result of the check as text.
        *rules: Tuples (condition, status, observation, advice), tested in this order. If a
            rule's observation is "", the CheckResult gets the argument `observation` instead.
        advice: The advice of the CheckResult if no rule applies: an optional improvement, or "".
    """
    for condition, status, other, remedy in rules:
        if condition:
            return CheckResult(subject, other or observation, status, remedy)
    return CheckResult(subject, observation, advice=advice)
