"""Schedules: numbers in steps that change from epoch to epoch.

In YAML any number in a step may be one of::

    size: {from: 128, to: 224, epochs: [0, 30]}        # linear: 128 up to epoch 0, 224 from 30 on
    p: {value: 0.5, until: 60, then: 0.1}              # a jump: 0.5 up to epoch 59
    p: {until: 60, then: 0}                            # the step's default, then a jump

`build_with_schedules` builds a pipeline or a batch stage for all epochs::

    document ─> find the schedules ─> the epochs in which a number changes, and 0
                                                    │ for each
                                                    v
                document with a number in place of each schedule ─> build ─> one phase

A phase is a span of epochs in which no number changes. Invariants:

- Steps, containers, policies and views know nothing of schedules: each phase is built from plain
  numbers. So mistakes in any epoch are reported before the first batch.
- `Phased.at_epoch(e)` equals a pipeline built from the document with the numbers of epoch e.
- A schedule that never changes its number makes no phase.
"""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self, TypeVar

from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.schedule_parsing import Number, Schedule, is_schedule, parse_schedule
from gpupipe.schema.document import UNRESOLVED, Document, Loc, Node, join_keys


class Phased:
    """The base of Pipeline and BatchStage, both dataclasses, which have one object per phase.

    A phase is a span of epochs in which no number of a step changes.

    Attributes:
        later: For each epoch in which numbers change, the object from that epoch on, in order.
            Empty if there are no schedules.
    """

    later: Mapping[int, Self]

    @property
    def fingerprint(self) -> str:
        """A hash of the steps and their parameters, equal for two files that mean the same."""
        raise NotImplementedError

    def hash_phases(self, steps: Sequence[Any]) -> str:
        """Return a hash of the later phases and of `steps`, the steps of epoch 0 as JSON values."""
        later = [["from epoch", epoch, one.fingerprint] for epoch, one in self.later.items()]
        text = json.dumps([*steps, *later], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def phases(self) -> tuple[Self, ...]:
        """The pipeline, or the batch stage, of each phase in order."""
        return self._phases if self.later else (self,)

    @cached_property
    def _phases(self) -> tuple[Self, ...]:
        first: Self = replace(self, later={})  # type: ignore[type-var]
        return (first, *self.later.values())

    def phase_of(self, epoch: int) -> int:
        """Return the index in `phases` of the phase that contains `epoch`."""
        return bisect_right(tuple(self.later), epoch)

    def at_epoch(self, epoch: int) -> Self:
        """Return the pipeline, or the batch stage, with the numbers of `epoch`."""
        return self.phases[self.phase_of(epoch)] if self.later else self


_Built = TypeVar("_Built", bound=Phased)


def build_with_schedules(
    document: Document,
    loc: Loc,
    lists: Sequence[Loc],
    build: Callable[[Document], _Built],
    describe_change: Callable[[_Built, _Built, str], str],
) -> _Built:
    """Build a pipeline or a batch stage for all epochs.

    A phase is a span of epochs in which no number of a step changes.

    Args:
        document: The YAML document.
        loc: The path of the pipeline or the batch stage in the document.
        lists: The paths of all lists of steps in the pipeline or the batch stage.
        build: Builds one phase from a document without schedules, or raises ConfigError.
        describe_change: Called with the first phase, a later one, and the later epoch in words.
            Returns a message if the two differ in a way that is not allowed, else "".

    Returns:
        The pipeline or the batch stage of epoch 0; its `later` holds those of the other phases.

    Raises:
        ConfigError: If there are mistakes, or `describe_change` returns a message. The error lists
            all mistakes of the first phase that has any.
    """
    problems: list[Problem] = []
    schedules = _Schedules(
        {
            node: parse_schedule(Node(document, node, problems), _name(node))
            for steps in lists
            for node in _find(document.at(steps), steps, False)
        }
    )
    phases: dict[int, _Built] = {}
    for epoch in (0, *schedules.list_changes()):
        try:
            phases[epoch] = build(schedules.resolve(document, epoch))
        except ConfigError as e:
            problems += _name_epoch(e.problems, document, schedules, epoch, build)
        if problems:
            raise ConfigError(problems)
        if change := describe_change(phases[0], phases[epoch], schedules.describe(epoch)):
            raise ConfigError.at(document.where(loc), change)
    first = phases.pop(0)
    return replace(first, later=phases)  # type: ignore[type-var]


@dataclass(frozen=True)
class _Schedules:
    """The schedules in the steps of a document.

    Attributes:
        by_loc: Each schedule by its path in the document; None if it is invalid.
    """

    by_loc: Mapping[Loc, Schedule | None]

    def values_at(self, epoch: int) -> dict[Loc, Number | None]:
        """Return each valid schedule's number in an epoch, by path; None for the step's default."""
        return {loc: s.at(epoch) for loc, s in self.by_loc.items() if s is not None}

    def list_changes(self) -> list[int]:
        """Return the epochs after 0 in which a number differs from that of the epoch before."""
        epochs = sorted({e for s in self.by_loc.values() if s is not None for e in s.epochs})
        return [
            epoch
            for before, epoch in pairwise([0, *epochs])
            if self.values_at(before) != self.values_at(epoch)
        ]

    def resolve(self, document: Document, epoch: int) -> Document:
        """Return the document of an epoch, with a number in the place of each schedule."""
        if not self.by_loc:
            return document
        values = dict.fromkeys(self.by_loc, UNRESOLVED) | self.values_at(epoch)
        return replace(document, data=_insert(document.data, (), values))

    def describe(self, epoch: int) -> str:
        """Return the numbers of an epoch in words: "in epoch 60, where resize.size is 320"."""
        numbers = (
            f"{_name(loc)} is {'its default' if value is None else value}"
            for loc, value in self.values_at(epoch).items()
        )
        return f"in epoch {epoch}, where {' and '.join(numbers)}"


def refuse_schedules(document: Document, loc: Loc, problems: list[Problem]) -> None:
    """Report each schedule in a mapping that must have none, and replace it with UNRESOLVED.

    Args:
        document: The document, changed in place.
        loc: The path of the mapping.
        problems: The list to which the mistakes are appended.
    """
    section = document.at(loc)
    for key, value in section.items() if isinstance(section, dict) else ():
        if is_schedule(value):
            name = join_keys((*loc, key))
            rule = "only numbers in steps have schedules, under 'pipeline:' and 'batch:'"
            where = document.where((*loc, key))
            problems.append(Problem(where, f"{name} is a schedule, but {rule}: write one value"))
            section[key] = UNRESOLVED


def _name(loc: Loc) -> str:
    """Return a schedule's path without the keys before its step, such as "resize.size.0".

    A step is an item of a list, so its name is the key after the item's number. Of nested steps,
    the innermost counts.
    """
    pairs = enumerate(pairwise(loc))
    steps = [n for n, (a, b) in pairs if isinstance(a, int) and isinstance(b, str)]
    return join_keys(loc[steps[-1] + 1 if steps else 0 :])


def _find(value: Any, loc: Loc, is_step: bool) -> Iterator[Loc]:
    """Yield the paths of the schedules in a value of the document.

    Args:
        value: The value.
        loc: The path of the value.
        is_step: Whether the value holds a step's parameters; such a mapping is no schedule.
    """
    if not is_step and is_schedule(value):
        yield loc
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _find(inner, (*loc, key), False)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict) and len(item) == 1:
                ((name, parameters),) = item.items()
                yield from _find(parameters, (*loc, number, name), True)
            else:
                yield from _find(item, (*loc, number), False)


def _insert(value: Any, loc: Loc, values: Mapping[Loc, Any]) -> Any:
    """Return a copy of `value` in which the parts at the paths in `values` are replaced.

    `loc` is the path of `value` itself. A key whose new value is None is left out.
    """
    if loc in values:
        return values[loc]
    if isinstance(value, dict):
        return {
            key: _insert(inner, (*loc, key), values)
            for key, inner in value.items()
            if values.get((*loc, key), inner) is not None or inner is None
        }
    if isinstance(value, list):
        return [_insert(item, (*loc, number), values) for number, item in enumerate(value)]
    return value


def _name_epoch(
    problems: Sequence[Problem],
    document: Document,
    schedules: _Schedules,
    epoch: int,
    build: Callable[[Document], Any],
) -> list[Problem]:
    """Return the problems of an epoch, with the epoch's numbers appended to the messages.

    A problem of epoch 0 that the last phase has too keeps its message, since no schedule causes it.
    To find such problems, this function calls `build` with the document of the last phase.
    """
    changes = schedules.list_changes()
    if not changes:
        return list(problems)
    always: Sequence[Problem] = ()
    if epoch == 0:
        try:
            build(schedules.resolve(document, changes[-1]))
        except ConfigError as e:
            always = e.problems
    when = schedules.describe(epoch)
    return [p if p in always else Problem(p.where, f"{p.what} ({when})") for p in problems]
