"""Parses one schedule of a YAML document, or reports its mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.errors import Problem, did_you_mean, nearest, shown
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.field_types import is_number

Number = int | float
MAX_EPOCH = 10_000
"""The last epoch that a schedule may name. For each epoch of a ramp a pipeline may be built."""

_LINEAR = {
    "from": "the number until the first of 'epochs'",
    "to": "the number from the last of 'epochs' on",
    "epochs": "[first, last], the epochs between which the number changes",
}
_JUMP = {
    "value": "the number until then",
    "until": "the epoch of the change, from 1 on",
    "then": "the number from that epoch on",
}
_MARKS = {*_LINEAR, "until", "then"}
"""A mapping with one of these keys is a schedule, and no other parameter of a step."""


@dataclass(frozen=True)
class Linear:
    """A number that changes in a straight line.

    Attributes:
        begin: The number up to epoch `first`.
        end: The number from epoch `last` on.
        first: The last epoch before the change.
        last: The first epoch after it.
    """

    begin: Number
    end: Number
    first: int
    last: int

    @property
    def epochs(self) -> Sequence[int]:
        """The epochs in which the number may differ from that of the epoch before."""
        return range(self.first + 1, self.last + 1)

    def at(self, epoch: int) -> Number | None:
        """Return the number in an epoch.

        Between two ints it is an int, rounded to the nearest; halves to the even one, as `round`
        and NumPy do.
        """
        if epoch <= self.first:
            return self.begin
        if epoch >= self.last:
            return self.end
        share = (self.end - self.begin) * (epoch - self.first) / (self.last - self.first)
        value = self.begin + share
        return round(value) if isinstance(self.begin, int) and isinstance(self.end, int) else value


@dataclass(frozen=True)
class Jump:
    """A number that changes at once.

    Attributes:
        value: The number before epoch `until`; None for the default of the step's parameter.
        until: The first epoch with another number.
        then: That number, or another schedule.
    """

    value: Number | None
    until: int
    then: Number | Schedule

    @property
    def epochs(self) -> Sequence[int]:
        """The epochs in which the number may differ from that of the epoch before."""
        return [self.until, *(() if isinstance(self.then, int | float) else self.then.epochs)]

    def at(self, epoch: int) -> Number | None:
        """Return the number in an epoch; None for the default of the step's parameter."""
        if epoch < self.until:
            return self.value
        return self.then if isinstance(self.then, int | float) else self.then.at(epoch)


Schedule = Linear | Jump


def is_schedule(value: Any) -> bool:
    """Return whether a value in a step is meant as a schedule."""
    return isinstance(value, dict) and bool(_MARKS & value.keys())


def parse_schedule(
    document: Document, loc: Loc, name: str, problems: list[Problem], begins: int = 0
) -> Schedule | None:
    """Parse the schedule at `loc` of a document.

    Args:
        document: The YAML document.
        loc: The path of the schedule.
        name: Its name in messages.
        problems: Gets the mistakes appended.
        begins: The epoch in which it begins: 0, or `until` of the schedule around it.

    Returns:
        The schedule; None if it has mistakes, or a value that could not be resolved.
    """
    return _Parser(document, loc, name, problems, begins).parse()


class _Parser:
    """Parses one schedule; `parse_schedule` documents the arguments."""

    def __init__(
        self, document: Document, loc: Loc, name: str, problems: list[Problem], begins: int
    ) -> None:
        self._document, self._loc, self._name = document, loc, name
        self._problems, self._begins = problems, begins
        self._node: dict[str, Any] = document.at(loc)

    def parse(self) -> Schedule | None:
        is_jump = len(_JUMP.keys() & self._node) >= len(_LINEAR.keys() & self._node)
        before = len(self._problems)
        self._check_keys(_JUMP if is_jump else _LINEAR)
        if len(self._problems) > before:
            return None
        return self._parse_jump() if is_jump else self._parse_linear()

    def _check_keys(self, known: dict[str, str]) -> None:
        """Report unknown keys, and those that are missing."""
        unknown = [key for key in self._node if key not in known]
        for key in unknown:
            self._report(key, f"unknown key{did_you_mean(key, known)}", of_key=True)
        meant = {nearest(key, known) for key in unknown}
        # An item of a list has no default. A parameter has one, or its step says that it has not.
        parameter = next(key for key in reversed(self._loc) if key != "then")
        optional = set() if isinstance(parameter, int) else {"value"}
        for key, meaning in known.items():
            if key not in self._node and key not in meant | optional:
                where = self._document.where(self._loc)
                what = f"{self._name}.{key}: missing; write '{key}: ...' ({meaning})"
                self._problems.append(Problem(where, what))

    def _parse_linear(self) -> Linear | None:
        begin, end = self._parse_number("from"), self._parse_number("to")
        epochs = self._node["epochs"]
        if epochs is UNRESOLVED:
            return None
        if not isinstance(epochs, list) or len(epochs) != 2:
            self._refuse("epochs", "[first, last], two epochs")
            return None
        checked = [self._parse_epoch("epochs", epoch) for epoch in epochs]
        if begin is None or end is None or None in checked:
            return None
        first, last = (epoch for epoch in checked if epoch is not None)
        if first >= last:
            rule = "[first, last], the first before the last: else it would end before it begins"
            if first == last:
                jump = f"{{value: {begin}, until: {last}, then: {end}}}"
                rule = f"[first, last], the first before the last; for a jump write {jump}"
            self._refuse("epochs", rule)
            return None
        if first < self._begins:
            self._refuse_early("epochs")
            return None
        return Linear(begin, end, first, last)

    def _parse_jump(self) -> Jump | None:
        value = self._parse_number("value") if "value" in self._node else None
        until = self._parse_epoch("until", self._node["until"])
        if until is not None and until <= self._begins:
            self._refuse_early("until")
            until = None
        then: Number | Schedule | None
        if is_schedule(self._node["then"]):
            inner = (*self._loc, "then")
            name = f"{self._name}.then"
            then = parse_schedule(self._document, inner, name, self._problems, until or 0)
        else:
            then = self._parse_number("then")
        if until is None or then is None or (value is None and "value" in self._node):
            return None
        return Jump(value, until, then)

    def _parse_number(self, key: str) -> Number | None:
        value: Any = self._node[key]
        if is_number(value) and math.isfinite(value):
            return value  # type: ignore[no-any-return]  # a number
        if value is not UNRESOLVED:
            self._refuse(key, "a number: schedules change numbers, and nothing else")
        return None

    def _parse_epoch(self, key: str, value: Any) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_EPOCH:
            return value
        if value is not UNRESOLVED:
            rule = f"whole numbers from 0 to {MAX_EPOCH}; epochs count from 0"
            self._refuse(key, f"[first, last], {rule}" if key == "epochs" else f"an epoch: {rule}")
        return None

    def _refuse_early(self, key: str) -> None:
        begins = self._begins
        rule = f"later than epoch {begins}, in which this schedule begins"
        if key == "epochs":
            rule = f"epochs from {begins} on, in which this schedule begins"
        self._refuse(key, f"{rule}: else it would end before it begins")

    def _refuse(self, key: str, rule: str) -> None:
        self._report(key, f"is {shown(self._node[key])}, but should be {rule}", "")

    def _report(self, key: str, what: str, colon: str = ":", of_key: bool = False) -> None:
        where = self._document.where((*self._loc, key), of_key=of_key)
        self._problems.append(Problem(where, f"{self._name}.{key}{colon} {what}"))
