"""Builds the batch stage from the list under `batch:` in a YAML document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic

from gpupipe.batch_stage.batch_container import BatchContainer, NestedBatchStep
from gpupipe.batch_stage.batch_step import BATCH_STEPS, BatchField, BatchStep
from gpupipe.batch_stage.stage import BatchEntry, BatchStage
from gpupipe.errors import ConfigError, Problem, shown
from gpupipe.pipeline.parsing import parse_targets, split_item
from gpupipe.pipeline.schedules import build_phases, find_schedules
from gpupipe.pipeline.step import StepIncompatible
from gpupipe.runtime import plugins
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.validation_errors import to_problems

_SHAPE = "'- name: {parameter: value}' or '- name'"


@dataclass(frozen=True)
class _Parsed:
    """One item of the list: the step, where it is, and what `on:` says (None if nothing)."""

    name: str
    step: BatchStep
    loc: Loc
    where: str
    on: Any = None


def build_batch_stage(
    document: Document,
    loc: Loc,
    fields: Mapping[str, BatchField] | None,
    main: Sequence[str] = (),
) -> BatchStage:
    """Build the batch stage from the list of steps at `loc` of a document.

    If numbers of steps have schedules, the stages of all epochs are built.

    Args:
        document: The YAML document.
        loc: The path of keys to the list.
        fields: The fields of a batch, by name; None if they are not known, because other parts of
            the config are wrong. Then only the parameters of the steps are checked.
        main: The fields that a step works on unless it has `on:`.

    Raises:
        ConfigError: With all mistakes in the list.
    """
    problems: list[Problem] = []
    schedules = find_schedules(document, [loc], problems)
    phases = build_phases(
        document, schedules, problems, lambda plain: _build_phase(plain, loc, fields, main)
    )
    first = phases.pop(0)
    for epoch, stage in phases.items():
        if stage.num_classes != first.num_classes:
            when = schedules.describe(epoch)
            change = (
                f"num_classes is {first.num_classes} in epoch 0, but {stage.num_classes} {when}"
            )
            raise ConfigError([Problem(document.where(loc), f"{change}: write one number")])
    return replace(first, later=phases)


def check_later_fields(
    stage: BatchStage, fields: Mapping[str, BatchField], epoch: int
) -> list[Problem]:
    """Return the mistakes of a stage with the fields that batches have from an epoch on.

    Args:
        stage: The stage, which was built for the fields of epoch 0.
        fields: The fields, which differ from those only in sizes.
        epoch: The epoch.
    """
    problems = []
    for entry in stage.entries:
        try:
            with plugins.blamed(
                entry.name, type(entry.step), entry.where, "check()", StepIncompatible
            ):
                entry.step.check({name: fields[name] for name in entry.layouts})
        except StepIncompatible as e:
            what = f"{entry.name} cannot stand here: {e} (from epoch {epoch} on)"
            problems.append(Problem(e.where or entry.where, what))
    return problems


def _build_phase(
    document: Document, loc: Loc, fields: Mapping[str, BatchField] | None, main: Sequence[str]
) -> BatchStage:
    """Build the stage from a document without schedules; `build_batch_stage` says the rest."""
    problems: list[Problem] = []
    items = document.at(loc)
    parsed = [_parse(item, document, (*loc, i), problems) for i, item in enumerate(items)]
    steps = [p for p in parsed if p is not None]
    entries = [] if fields is None else _check(steps, document, fields, main, problems)
    _check_num_classes(steps, problems)
    if problems:
        raise ConfigError(problems)
    return BatchStage(tuple(entries), tuple(main) if entries else ())


def _parse(item: Any, document: Document, loc: Loc, problems: list[Problem]) -> _Parsed | None:
    """Parse one item of the list; append its mistakes to `problems`."""
    name, parameters = split_item(item)
    where = document.where((*loc, name) if isinstance(item, dict) and name else loc, of_key=True)
    if not name:
        if item is not UNRESOLVED:
            value = "empty" if item is None else shown(item)
            problems.append(Problem(where, f"a step is {value}, but should be {_SHAPE}"))
        return None
    try:
        model = BATCH_STEPS.find(name)
    except LookupError as e:
        problems.append(Problem(where, e.args[0]))
        return None
    on = None
    if isinstance(parameters, dict):
        on = parameters.get("on")
        parameters = {key: value for key, value in parameters.items() if key != "on"}
    before = len(problems)
    if issubclass(model, BatchContainer) and isinstance(parameters, dict):
        parameters = _parse_nested(parameters, document, (*loc, name), problems)
    if len(problems) > before:
        return None
    try:
        with plugins.blamed(name, model, where, "validation", pydantic.ValidationError):
            step = model.model_validate({} if parameters is None else parameters)
    except pydantic.ValidationError as e:
        problems.extend(to_problems(e, model, document, (*loc, name), prefix=name))
        return None
    return _Parsed(name, step, (*loc, name), where, on)


def _parse_nested(
    parameters: dict[str, Any], document: Document, loc: Loc, problems: list[Problem]
) -> dict[str, Any]:
    """Return a container's parameters with its list of steps parsed."""
    items = parameters.get("transforms")
    if not isinstance(items, list):
        return parameters
    nested = []
    for i, item in enumerate(items):
        parsed = _parse(item, document, (*loc, "transforms", i), problems)
        if parsed is not None and parsed.on is not None:
            problems.append(
                Problem(
                    document.where((*parsed.loc, "on"), of_key=True),
                    f"{parsed.name}.on: write it beside 'transforms', for all steps",
                )
            )
        elif parsed is not None:
            nested.append(NestedBatchStep(name=parsed.name, step=parsed.step, where=parsed.where))
    return parameters | {"transforms": nested}


def _check(
    steps: Sequence[_Parsed],
    document: Document,
    fields: Mapping[str, BatchField],
    main: Sequence[str],
    problems: list[Problem],
) -> list[BatchEntry]:
    """Check each step against its fields; append what does not fit to `problems`."""
    entries: list[BatchEntry] = []
    seen = Counter[str]()
    for p in steps:
        targets = _find_targets(p, document, fields, main, problems)
        if not targets:
            continue
        try:
            with plugins.blamed(p.name, type(p.step), p.where, "check()", StepIncompatible):
                p.step.check({name: fields[name] for name in targets})
        except StepIncompatible as e:
            problems.append(Problem(e.where or p.where, f"{p.name} cannot stand here: {e}"))
            continue
        seen[p.name] += 1
        key = p.name if seen[p.name] == 1 else f"{p.name}_{seen[p.name]}"
        layouts = {name: fields[name].spec.layout for name in targets}
        entries.append(BatchEntry(p.name, key, p.step, layouts, p.where))
    return entries


def _find_targets(
    p: _Parsed,
    document: Document,
    fields: Mapping[str, BatchField],
    main: Sequence[str],
    problems: list[Problem],
) -> Sequence[str]:
    """Return the fields that a step works on; () if `on:` is wrong, which `problems` then holds."""
    if p.on is None:
        return main
    return parse_targets(p.on, fields, document.where((*p.loc, "on")), problems)


def _check_num_classes(steps: Sequence[_Parsed], problems: list[Problem]) -> None:
    """Report a step whose number of classes differs from that of an earlier step."""
    first: tuple[str, int] | None = None
    for p in steps:
        for number in p.step.list_num_classes():
            first = first or (p.name, number)
            if number != first[1]:
                problems.append(
                    Problem(
                        p.where,
                        f"{p.name}.num_classes is {number}, but {first[0]} has {first[1]}: write "
                        "the same, or leave both out to take the classes of the data",
                    )
                )
