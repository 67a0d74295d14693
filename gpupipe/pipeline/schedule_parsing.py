"""Parses one schedule of a YAML document, or reports its mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpupipe.errors import did_you_mean, nearest, shown
from gpupipe.schema.document import UNRESOLVED, Node
from gpupipe.schema.field_types import is_finite, is_whole

Number = int | float
MAX_EPOCH = 10_000
"""The last epoch that a schedule may name: each epoch may need a pipeline of its own."""

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
_ELSE = "else it would end before it begins"
_MARKS = {*_LINEAR, "until", "then"}
"""A mapping in a step that has one of these keys is a schedule, and no ordinary parameter."""


@dataclass(frozen=True)
class Schedule:
    """A number that changes linearly from epoch `first` to epoch `last`.

    A jump is a schedule whose `last` is `first` + 1.

    Attributes:
        begin: The number up to epoch `first`; None for the default of the step's parameter.
        end: The number from epoch `last` on. After a jump, it may be a schedule that begins there.
        first: The last epoch before the change.
        last: The first epoch after the change.
    """

    begin: Number | None
    end: "Number | Schedule"
    first: int
    last: int

    @property
    def epochs(self) -> Sequence[int]:
        """The epochs in which the number may differ from the number of the epoch before."""
        later = self.end.epochs if isinstance(self.end, Schedule) else ()
        return [*range(self.first + 1, self.last + 1), *later]

    def at(self, epoch: int) -> Number | None:
        """Return the number in an epoch; None for the default of the step's parameter.

        If `begin` and `end` are ints, the number is rounded to an int, a half to the even
        neighbour, as in Python's `round`.
        """
        begin, end = self.begin, self.end
        if epoch <= self.first:
            return begin
        if isinstance(end, Schedule):
            return end.at(epoch)
        if epoch >= self.last or begin is None:
            return end
        value = begin + (end - begin) * (epoch - self.first) / (self.last - self.first)
        return round(value) if isinstance(begin, int) and isinstance(end, int) else value


def is_schedule(value: Any) -> bool:
    """Return whether a value in a step is a schedule: a mapping with a key of a schedule."""
    return isinstance(value, dict) and bool(_MARKS & value.keys())


def parse_schedule(node: Node, name: str, begins: int = 0) -> Schedule | None:
    """Parse a schedule of a document, and report its mistakes.

    Args:
        node: The mapping of the schedule in the document.
        name: The schedule's name in messages, such as "resize.size".
        begins: The epoch in which the schedule begins: 0, or the `until` of the jump under whose
            `then` the schedule stands.

    Returns:
        The schedule; None if it has mistakes, or a value that could not be resolved.
    """
    is_jump = len(_JUMP.keys() & node.value) >= len(_LINEAR.keys() & node.value)
    parser, before = _Parser(node, name, begins), len(node.problems)
    parser.check_keys(_JUMP if is_jump else _LINEAR)
    if len(node.problems) > before:
        return None
    return parser.parse_jump() if is_jump else parser.parse_linear()


@dataclass(frozen=True)
class _Parser:
    """Parses one schedule; `parse_schedule` documents the attributes."""

    node: Node
    name: str
    begins: int

    def check_keys(self, known: dict[str, str]) -> None:
        """Report keys that are not in `known`, and keys of `known` that are missing."""
        unknown = [key for key in self.node.value if key not in known]
        for key in unknown:
            hint = did_you_mean(key, known)
            self.node.inside(key).report(f"{self.name}.{key}: unknown key{hint}", of_key=True)
        meant = {nearest(key, known) for key in unknown}
        # An item of a list has no default. A parameter has one, or its step says that it has not.
        parameter = next(key for key in reversed(self.node.loc) if key != "then")
        optional = set() if isinstance(parameter, int) else {"value"}
        for key, meaning in known.items():
            if key not in self.node.value and key not in meant | optional:
                what = f"{self.name}.{key}: missing; write '{key}: ...' ({meaning})"
                self.node.report(what)

    def parse_linear(self) -> Schedule | None:
        begin, end = self._parse_number("from"), self._parse_number("to")
        epochs = self.node.value["epochs"]
        if not isinstance(epochs, list) or len(epochs) != 2:
            self._refuse("epochs", "[first, last], two epochs")
            return None
        first, last = (self._parse_epoch("epochs", epoch) for epoch in epochs)
        if begin is None or end is None or first is None or last is None:
            return None
        if wrong := self._explain_wrong_epochs(begin, end, first, last):
            self._refuse("epochs", wrong)
            return None
        return Schedule(begin, end, first, last)

    def _explain_wrong_epochs(self, begin: Number, end: Number, first: int, last: int) -> str:
        """Return the rule that a linear schedule's epochs break, for messages; "" if valid."""
        if first == last:
            jump = f"{{value: {begin}, until: {last}, then: {end}}}"
            return f"[first, last], the first before the last; for a jump write {jump}"
        if first > last:
            return f"[first, last], the first before the last: {_ELSE}"
        if first < self.begins:
            return f"epochs from {self.begins} on, in which this schedule begins: {_ELSE}"
        return ""

    def parse_jump(self) -> Schedule | None:
        node = self.node.value
        value = self._parse_number("value") if "value" in node else None
        until = self._parse_epoch("until", node["until"])
        if until is not None and until <= self.begins:
            rule = f"later than epoch {self.begins}, in which this schedule begins"
            self._refuse("until", f"{rule}: {_ELSE}")
            until = None
        then: Number | Schedule | None
        if is_schedule(node["then"]):
            then = parse_schedule(self.node.inside("then"), f"{self.name}.then", until or 0)
        else:
            then = self._parse_number("then")
        if until is None or then is None or (value is None and "value" in node):
            return None
        return Schedule(value, then, until - 1, until)

    def _parse_number(self, key: str) -> Number | None:
        value: Any = self.node.value[key]
        if is_finite(value):
            return value
        self._refuse(key, "a number: schedules change numbers, and nothing else")
        return None

    def _parse_epoch(self, key: str, value: Any) -> int | None:
        if is_whole(value) and 0 <= value <= MAX_EPOCH:
            return value
        if value is not UNRESOLVED:
            rule = f"whole numbers from 0 to {MAX_EPOCH}; epochs count from 0"
            self._refuse(key, f"[first, last], {rule}" if key == "epochs" else f"an epoch: {rule}")
        return None

    def _refuse(self, key: str, rule: str) -> None:
        """Report that the value at `key` breaks `rule`, unless its ${...} could not be resolved."""
        inner = self.node.inside(key)
        if inner.value is not UNRESOLVED:
            inner.report(f"{self.name}.{key} is {shown(inner.value)}, but should be {rule}")
