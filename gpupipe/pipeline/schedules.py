"""Schedules: numbers in steps that change from epoch to epoch.

In YAML any number in a step may be one of::

    size: {from: 128, to: 224, epochs: [0, 30]}        # linear
    p: {value: 0.5, until: 60, then: 0.1}              # a jump
    p: {until: 60, then: 0}                            # the step's default, then a jump

A schedule is a matter of the document: for each epoch it is replaced by a number, and the steps are
parsed from the result. So steps, containers, policies and views know nothing of schedules. A
pipeline or a batch stage is built once for each phase: a span of epochs in which no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.schedule_parsing import Number, Schedule, is_schedule, parse_schedule
from gpupipe.schema.document import UNRESOLVED, Document, Loc

_Built = TypeVar("_Built")


@dataclass(frozen=True)
class Schedules:
    """The schedules in the steps of a document.

    Attributes:
        by_loc: Each schedule by its path in the document; None if it is invalid.
    """

    by_loc: Mapping[Loc, Schedule | None]

    def values_at(self, epoch: int) -> dict[Loc, Number | None]:
        """Return the number of each valid schedule in an epoch; None for the step's default."""
        return {loc: s.at(epoch) for loc, s in self.by_loc.items() if s is not None}

    def list_changes(self) -> list[int]:
        """Return the epochs after 0 in which a number differs from that of the epoch before."""
        epochs = {e for s in self.by_loc.values() if s is not None for e in s.epochs}
        changes, values = [], self.values_at(0)
        for epoch in sorted(epochs):
            before, values = values, self.values_at(epoch)
            if values != before:
                changes.append(epoch)
        return changes

    def resolve(self, document: Document, epoch: int) -> Document:
        """Return the document of an epoch, with a number in the place of each schedule."""
        if not self.by_loc:
            return document
        values = dict.fromkeys(self.by_loc, UNRESOLVED) | self.values_at(epoch)
        return replace(document, data=_insert(document.data, (), values))

    def describe(self, epoch: int) -> str:
        """Return the numbers of an epoch in words: "in epoch 60, where resize.size is 320"."""
        numbers = (
            f"{name_schedule(loc)} is {'its default' if value is None else value}"
            for loc, value in self.values_at(epoch).items()
        )
        return f"in epoch {epoch}, where {' and '.join(numbers)}"


def find_schedules(document: Document, lists: Sequence[Loc], problems: list[Problem]) -> Schedules:
    """Find and parse the schedules in lists of steps.

    Args:
        document: The YAML document.
        lists: The paths of the lists.
        problems: Gets the mistakes in schedules appended.
    """
    return Schedules(
        {
            node: parse_schedule(document, node, name_schedule(node), problems)
            for loc in lists
            for node in _find(document.at(loc), loc, False)
        }
    )


def build_phases(
    document: Document,
    schedules: Schedules,
    problems: Sequence[Problem],
    build: Callable[[Document], _Built],
) -> dict[int, _Built]:
    """Build what a document describes once for each phase.

    Args:
        document: The document.
        schedules: The schedules in it.
        problems: The mistakes that were found so far.
        build: Builds it from a document without schedules, or raises ConfigError.

    Returns:
        What `build` returned, by the first epoch of the phase; the first is epoch 0.

    Raises:
        ConfigError: With all mistakes of the first phase that has any.
    """
    phases: dict[int, _Built] = {}
    for epoch in (0, *schedules.list_changes()):
        try:
            phases[epoch] = build(schedules.resolve(document, epoch))
        except ConfigError as e:
            wrong = _name_epoch(e.problems, document, schedules, epoch, build)
            raise ConfigError([*problems, *wrong]) from None
        if problems:
            raise ConfigError(problems)
    return phases


def build_with_schedules(
    document: Document,
    loc: Loc,
    lists: Sequence[Loc],
    build: Callable[[Document], _Built],
    describe_change: Callable[[_Built, _Built, str], str],
) -> tuple[_Built, dict[int, _Built]]:
    """Build a pipeline or a batch stage for all epochs.

    Args:
        document: The document.
        loc: The place of what is built.
        lists: The places of its lists of steps.
        build: Builds it from a document without schedules, or raises ConfigError.
        describe_change: Says what must not differ between the first epoch and a later one, whose
            numbers it gets in words; "" if nothing does.

    Returns:
        What belongs to epoch 0; and what to later ones, by the first epoch in which numbers change.

    Raises:
        ConfigError: With all mistakes of the first phase that has any.
    """
    problems: list[Problem] = []
    schedules = find_schedules(document, lists, problems)
    phases = build_phases(document, schedules, problems, build)
    first = phases.pop(0)
    for epoch, later in phases.items():
        if change := describe_change(first, later, schedules.describe(epoch)):
            raise ConfigError([Problem(document.where(loc), change)])
    return first, phases


def refuse_schedules(document: Document, loc: Loc, problems: list[Problem]) -> None:
    """Report the schedules in a mapping that takes none, and mark them as reported.

    Args:
        document: The document; its schedules there become UNRESOLVED.
        loc: The path of the mapping.
        problems: Gets the mistakes appended.
    """
    section = document.at(loc)
    for key, value in section.items() if isinstance(section, dict) else ():
        if is_schedule(value):
            name = ".".join(map(str, (*loc, key)))
            rule = "only numbers in steps have schedules, under 'pipeline:' and 'batch:'"
            where = document.where((*loc, key))
            problems.append(Problem(where, f"{name} is a schedule, but {rule}: write one value"))
            section[key] = UNRESOLVED


def name_schedule(loc: Loc) -> str:
    """Return the name of a schedule in messages, from its step on: "resize.size.0"."""
    first = max((n for n, keys in enumerate(pairwise(loc)) if _is_item(*keys)), default=-1)
    return ".".join(map(str, loc[first + 1 :]))


def _is_item(key: object, following: object) -> bool:
    """Return whether a key is the number of a step in a list, and the next one its name."""
    return isinstance(key, int) and isinstance(following, str)


def _find(value: Any, loc: Loc, is_step: bool) -> Iterator[Loc]:
    """Yield the paths of schedules in a value.

    Args:
        value: The value.
        loc: Its path.
        is_step: Whether it holds the parameters of a step, so that it is no schedule itself.
    """
    if not is_step and is_schedule(value):
        yield loc
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _find(inner, (*loc, key), False)
    if isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict) and len(item) == 1:
                ((name, parameters),) = item.items()
                yield from _find(parameters, (*loc, number, name), True)
            else:
                yield from _find(item, (*loc, number), False)


def _insert(value: Any, loc: Loc, values: Mapping[Loc, Any]) -> Any:
    """Return a copy of a value with `values` in it; without those that are None."""
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
    schedules: Schedules,
    epoch: int,
    build: Callable[[Document], Any],
) -> list[Problem]:
    """Return problems of an epoch, with the epoch in those that come and go with a schedule."""
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
