"""Parses the items of a list of steps in a YAML document."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pydantic

from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem, did_you_mean, shown
from gpupipe.pipeline.chain import ParsedStep
from gpupipe.pipeline.container import Container, NestedStep
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime import plugins
from gpupipe.schema.document import UNRESOLVED, Document, Loc
from gpupipe.schema.validation_errors import to_problems

STEP_SHAPE = "each '- name: {parameter: value}' or '- name'"
"""How a step is written, for messages."""


def parse_step(
    item: Any, document: Document, loc: Loc, problems: list[Problem], fields: Mapping[str, Spec]
) -> ParsedStep:
    """Parse one item of a list of steps.

    Args:
        item: The item.
        document: The YAML document.
        loc: The place of the item.
        problems: Gets the mistakes appended.
        fields: The fields of a sample, the main field first.
    """
    name, input_spec = split_item(item)
    where = document.where((*loc, name) if isinstance(item, dict) and name else loc, of_key=True)
    on = next(iter(fields))
    if isinstance(input_spec, dict) and "on" in input_spec:
        on, input_spec = input_spec["on"], {k: v for k, v in input_spec.items() if k != "on"}
    targets = parse_targets(on, fields, document.where((*loc, name, "on")), problems)
    wrong = ParsedStep(name, None, where, targets or tuple(fields))
    if not name:
        if item is not UNRESOLVED:
            problems.append(Problem(where, _describe_item(item)))
        return wrong
    try:
        model = STEPS.find(name)
    except LookupError as e:
        problems.append(Problem(where, e.args[0]))
        return wrong
    before = len(problems)
    if issubclass(model, Container) and isinstance(input_spec, dict):
        input_spec = _parse_transforms(input_spec, document, (*loc, name), problems, fields)
    if len(problems) > before:
        return wrong
    try:
        with plugins.blamed(name, model, where, "validation", pydantic.ValidationError):
            checked = model.model_validate({} if input_spec is None else input_spec)
        return ParsedStep(name, checked, where, targets) if targets else wrong
    except pydantic.ValidationError as e:
        problems.extend(to_problems(e, model, document, (*loc, name), prefix=name))
        return wrong


def _parse_transforms(
    parameters: dict[str, Any],
    document: Document,
    loc: Loc,
    problems: list[Problem],
    fields: Mapping[str, Spec],
) -> dict[str, Any]:
    """Return a container's parameters with its list of steps parsed."""
    items = parameters.get("transforms")
    if not isinstance(items, list):
        return parameters
    nested = []
    for i, item in enumerate(items):
        p = parse_nested_step(item, document, (*loc, "transforms", i), problems, fields)
        if p is not None and p.step is not None:
            nested.append(NestedStep(name=p.name, step=p.step, where=p.where))
    return parameters | {"transforms": nested}


def parse_nested_step(
    item: Any, document: Document, loc: Loc, problems: list[Problem], fields: Mapping[str, Spec]
) -> ParsedStep | None:
    """Parse a step of a container or a view, which has no `on:`; None if it has one."""
    name, parameters = split_item(item)
    if isinstance(parameters, dict) and "on" in parameters:
        where = document.where((*loc, name, "on"), of_key=True)
        rule = "a step of a container or a view has no 'on': it works where they work"
        problems.append(Problem(where, f"{name}.on: {rule}"))
        return None
    return parse_step(item, document, loc, problems, fields)


def split_item(item: Any) -> tuple[str, Any]:
    """Return an item's name and parameters; "" if it has no single name."""
    if isinstance(item, str):
        return item, None
    return next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else ("", None)


def _describe_item(item: Any) -> str:
    if isinstance(item, dict) and item:
        return (
            f"one step has {len(item)} names ({', '.join(item)}): begin each step with a dash, "
            "and indent its parameters below its name"
        )
    return (
        f"a step is {'empty' if item is None else shown(item)}, but should be '- name: "
        f"{{parameter: value}}' or '- name'"
    )


def parse_targets(
    on: Any, fields: Collection[str], where: str, problems: list[Problem]
) -> tuple[str, ...]:
    """Return the fields that `on:` names; () if one is unknown, which `problems` then holds."""
    if on is UNRESOLVED:
        return ()
    names = [on] if isinstance(on, str) else on
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        problems.append(
            Problem(
                where,
                f"on is {shown(on)}, but should be the name of a field, or a list of names: "
                f"{', '.join(fields)}",
            )
        )
        return ()
    unknown = [n for n in names if n not in fields]
    problems.extend(
        Problem(where, f"on: there is no field '{n}'{did_you_mean(n, fields)}") for n in unknown
    )
    return () if unknown else tuple(dict.fromkeys(names))
