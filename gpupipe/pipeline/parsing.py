"""Parses the items of a list of steps in a YAML document."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from gpupipe.dataset.spec import Spec
from gpupipe.errors import Problem, did_you_mean, shown
from gpupipe.pipeline.container import BaseContainer, BaseNestedStep, Container, NestedStep
from gpupipe.pipeline.step import BaseStep, Step
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.failures import step_errors
from gpupipe.runtime.registry import Registry
from gpupipe.schema.document import UNRESOLVED, Node
from gpupipe.schema.validation_errors import build_model

_Step = TypeVar("_Step", bound=BaseStep)

STEP_SHAPE = "each '- name: {parameter: value}' or '- name'"
"""How YAML writes a step, for messages."""


@dataclass(frozen=True)
class StepKind(Generic[_Step]):
    """The kind of steps in a list: steps on samples, or steps on batches.

    Attributes:
        registry: Finds the class of a step by its name.
        container: The base class of containers of this kind.
        nested: The model of a step inside a container.
        instead_of_on: The message if a step inside a container has an `on:`, which it must not.
    """

    registry: Registry[_Step]
    container: type[BaseContainer]
    nested: type[BaseNestedStep]
    instead_of_on: str


@dataclass(frozen=True)
class ParsedStep(Generic[_Step]):
    """One step of a list, and the fields that it works on.

    `step` is None if the step is invalid. `on` is () if the step's `on:` is invalid.
    """

    name: str
    step: _Step | None
    where: str
    on: tuple[str, ...]


_ON_SAMPLES = StepKind(
    STEPS,
    Container,
    NestedStep,
    "a step of a container or a view has no 'on': it works where they work",
)


def parse_step(
    node: Node, fields: Mapping[str, Spec], annotations: Mapping[str, Spec] = MappingProxyType({})
) -> ParsedStep[Step]:
    """Parse one item of a list of steps on samples.

    Args:
        node: The item of the list.
        fields: The fields of a sample, the main field first.
        annotations: The fields of annotations, which `on:` must not name.
    """
    parsed = parse_item(_ON_SAMPLES, node, fields, (next(iter(fields)),), annotations)
    return parsed if parsed.on else replace(parsed, step=None, on=tuple(fields))


def parse_nested_step(node: Node, fields: Mapping[str, Spec]) -> ParsedStep[Step] | None:
    """Parse a step of a view. If the step has an `on:`, report that mistake and return None."""
    return None if _report_on(_ON_SAMPLES, node) else parse_step(node, fields)


def parse_item(
    kind: StepKind[_Step],
    node: Node,
    fields: Collection[str] | None,
    main: tuple[str, ...],
    annotations: Mapping[str, Spec] = MappingProxyType({}),
) -> ParsedStep[_Step]:
    """Parse one item of a list of steps.

    Args:
        kind: Whether the items are steps on samples or on batches.
        node: The item.
        fields: The fields that `on:` may name; None to ignore `on:`.
        main: The fields that a step without `on:` works on.
        annotations: The fields of annotations, which `on:` must not name.
    """
    name, parameters = split_item(node.value)
    inner = node.inside(name) if name else node
    where = (inner if isinstance(node.value, dict) else node).where(of_key=True)
    on = main
    if isinstance(parameters, dict) and "on" in parameters:
        if fields is not None:
            on = parse_targets(inner.inside("on"), fields, annotations)
        parameters = {key: value for key, value in parameters.items() if key != "on"}
    wrong = ParsedStep[_Step](name, None, where, on)
    if not name:
        if node.value is not UNRESOLVED:
            node.report(_describe_item(node.value), of_key=True)
        return wrong
    try:
        model = kind.registry.find(name)
    except LookupError as e:
        node.problems.append(Problem(where, e.args[0]))
        return wrong
    before = len(node.problems)
    if issubclass(model, kind.container) and isinstance(parameters, dict):
        parameters = _parse_transforms(kind, inner, parameters)
    if len(node.problems) > before:
        return wrong
    with step_errors(name, model, where, "validation"):
        context = {"where": where, "folder": node.document.folder, "on": on}
        values = {} if parameters is None else parameters
        return replace(wrong, step=build_model(inner, model, values, name, context))


def _parse_transforms(
    kind: StepKind[Any], node: Node, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Return a container's parameters, with the items of `transforms` parsed into steps."""
    if not isinstance(parameters.get("transforms"), list):
        return parameters
    items = node.inside("transforms").items()
    parsed = [parse_item(kind, item, None, ()) for item in items if not _report_on(kind, item)]
    nested = [kind.nested(name=p.name, step=p.step, where=p.where) for p in parsed if p.step]
    return parameters | {"transforms": nested}


def _report_on(kind: StepKind[Any], node: Node) -> bool:
    """Return whether a step has an `on:`; if so, report it as a mistake."""
    name, parameters = split_item(node.value)
    has_on = isinstance(parameters, dict) and "on" in parameters
    if has_on:
        node.inside(name, "on").report(f"{name}.on: {kind.instead_of_on}", of_key=True)
    return has_on


def split_item(item: Any) -> tuple[str, Any]:
    """Return an item's name and parameters; ("", None) if the item has no single name."""
    if isinstance(item, str):
        return item, None
    return next(iter(item.items())) if isinstance(item, dict) and len(item) == 1 else ("", None)


def _describe_item(item: Any) -> str:
    if isinstance(item, dict) and item:
        return (
            f"one step has {len(item)} names ({', '.join(item)}): begin each step with a dash, "
            "and indent its parameters below its name"
        )
    shape = "'- name: {parameter: value}' or '- name'"
    return f"a step is {'empty' if item is None else shown(item)}, but should be {shape}"


def parse_targets(
    node: Node, fields: Collection[str], annotations: Mapping[str, Spec] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the fields that the value of `on:` names; report mistakes and return () instead."""
    on = node.value
    names = [on] if isinstance(on, str) else on
    if on is UNRESOLVED:
        return ()
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        node.report(
            f"on is {shown(on)}, but should be the name of a field, or a list of names: "
            f"{', '.join(fields)}"
        )
        return ()
    unknown = [n for n in names if n not in fields]
    for name in unknown:
        annotation = annotations[name].annotation if name in annotations else None
        if annotation is not None:
            node.report(
                f"on: '{name}' goes through the steps of its image: write 'on: {annotation.of}'"
            )
            continue
        node.report(f"on: there is no field '{name}'{did_you_mean(name, fields)}")
    return () if unknown else tuple(dict.fromkeys(names))
