"""The steps of a pipeline as a list of plain values, which adapters return."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel

from gpupipe.config import to_plain_types
from gpupipe.runtime.user_functions import FunctionMissingError, find_function, name_function


class StepList(list[Any]):
    """The steps of a pipeline as plain values, as a config has them under `pipeline:`.

    It is a list like any other: steps can be added, changed and removed before load() gets it.

    Examples:
        >>> steps = gpupipe.from_torchvision(compose)
        >>> print(steps)  # the YAML
        >>> loader = gpupipe.load("imagenet_train", pipeline=steps)
    """

    def to_yaml(self) -> str:
        """Return the YAML of the pipeline, as a file in `pipelines/` has it.

        A function is written as "module:function". What has no such name, such as a lambda or an
        object, gets a comment: a file cannot have it.
        """
        return "".join(_write_item(item) for item in to_plain_types(list(self)))

    __str__ = to_yaml


def _write_item(item: Any) -> str:
    if isinstance(item, str):
        return f"- {item}\n"
    nameless: list[str] = []
    named = _name_functions(item, nameless)
    text = yaml.safe_dump([named], default_flow_style=None, sort_keys=False, width=96)
    comments = [f"# no file can have {name}: define a function in a module\n" for name in nameless]
    return "".join([*comments, text])


def _name_functions(value: Any, nameless: list[str]) -> Any:
    """Return a copy with the names of functions in place of these.

    Args:
        value: A value of a step, with dicts and lists in it.
        nameless: Gets the names by which no function can be imported, such as that of a lambda.
    """
    if isinstance(value, dict):
        return {key: _name_functions(v, nameless) for key, v in value.items()}
    if isinstance(value, list):
        return [_name_functions(v, nameless) for v in value]
    if not callable(value):
        return value
    name = name_function(value)
    try:
        is_found = find_function(name, {}, None).function is value
    except FunctionMissingError:
        is_found = False
    if not is_found and not isinstance(value, type):
        nameless.append(name)
    return name


def write_step(name: str, checked: BaseModel, parameters: Mapping[str, Any]) -> Any:
    """Return a step in YAML form, without the parameters that have their defaults.

    A fill by kinds is equal to its part for images, so that it is always written.

    Args:
        name: The name of the step.
        checked: The step.
        parameters: The parameters from which it was built.
    """
    fields = type(checked).model_fields
    written = {
        key: value
        for key, value in parameters.items()
        if isinstance(value, dict) or getattr(checked, key) != fields[key].default
    }
    return {name: written} if written else name
