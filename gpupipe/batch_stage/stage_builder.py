"""Builds the batch stage from the list under `batch:` in a YAML document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from gpupipe.batch_stage.batch_step import (
    BATCH_STEPS,
    BatchContainer,
    BatchField,
    BatchStep,
    NestedBatchStep,
)
from gpupipe.batch_stage.stage import BatchEntry, BatchStage
from gpupipe.errors import ConfigError, Problem
from gpupipe.pipeline.entry import make_key
from gpupipe.pipeline.parsing import ParsedStep, StepKind, parse_item
from gpupipe.pipeline.schedules import build_with_schedules
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.runtime import plugins
from gpupipe.schema.document import Document, Loc

_ON_BATCHES = StepKind(
    BATCH_STEPS, BatchContainer, NestedBatchStep, "write it beside 'transforms', for all steps"
)


def build_batch_stage(
    document: Document, loc: Loc, fields: Mapping[str, BatchField] | None, main: Sequence[str] = ()
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
    return build_with_schedules(
        document,
        loc,
        [loc],
        lambda plain: _build_phase(plain, loc, fields, tuple(main)),
        _describe_change,
    )


def _describe_change(first: BatchStage, later: BatchStage, when: str) -> str:
    if first.num_classes == later.num_classes:
        return ""
    change = f"num_classes is {first.num_classes} in epoch 0, but {later.num_classes} {when}"
    return f"{change}: write one number"


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
                entry.name, type(entry.step), entry.where, "check()", StepIncompatibleError
            ):
                entry.step.check({name: fields[name] for name in entry.layouts})
        except StepIncompatibleError as e:
            what = f"{entry.name} cannot stand here: {e} (from epoch {epoch} on)"
            problems.append(Problem(e.where or entry.where, what))
    return problems


def _build_phase(
    document: Document, loc: Loc, fields: Mapping[str, BatchField] | None, main: tuple[str, ...]
) -> BatchStage:
    """Build the stage from a document without schedules; `build_batch_stage` says the rest."""
    problems: list[Problem] = []
    parsed = [
        parse_item(_ON_BATCHES, item, document, (*loc, i), problems, fields, main)
        for i, item in enumerate(document.at(loc))
    ]
    entries = [] if fields is None else _check(parsed, fields, problems)
    _check_num_classes(parsed, problems)
    if problems:
        raise ConfigError(problems)
    return BatchStage(tuple(entries), main if entries else ())


def _check(
    steps: Sequence[ParsedStep[BatchStep]],
    fields: Mapping[str, BatchField],
    problems: list[Problem],
) -> list[BatchEntry]:
    """Check each step against its fields; append what does not fit to `problems`."""
    entries: list[BatchEntry] = []
    seen = Counter[str]()
    for p in steps:
        if p.step is None or not p.on:
            continue
        try:
            with plugins.blamed(p.name, type(p.step), p.where, "check()", StepIncompatibleError):
                p.step.check({name: fields[name] for name in p.on})
        except StepIncompatibleError as e:
            problems.append(Problem(e.where or p.where, f"{p.name} cannot stand here: {e}"))
            continue
        seen[p.name] += 1
        layouts = {name: fields[name].spec.layout for name in p.on}
        key = make_key(p.name, seen[p.name])
        entries.append(BatchEntry(p.name, key, p.step, p.where, layouts))
    return entries


def _check_num_classes(steps: Sequence[ParsedStep[BatchStep]], problems: list[Problem]) -> None:
    """Report a step whose number of classes differs from that of an earlier step."""
    first: tuple[str, int] | None = None
    for p in steps:
        for number in p.step.list_num_classes() if p.step else ():
            first = first or (p.name, number)
            if number != first[1]:
                problems.append(
                    Problem(
                        p.where,
                        f"{p.name}.num_classes is {number}, but {first[0]} has {first[1]}: write "
                        "the same, or leave both out to take the classes of the data",
                    )
                )
