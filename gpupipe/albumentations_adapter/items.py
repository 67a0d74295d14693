"""Steps in YAML form: "name", or {"name": {parameter: value}}."""

from collections.abc import Sequence
from typing import Any

import pydantic

from gpupipe.config import to_plain_types
from gpupipe.config.step_list import write_step
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.torchvision_adapter.parameters import NoCounterpartError


def make_item(step: str, parameters: dict[str, Any], p: float | None) -> Any:
    """Return a step in YAML form, without the parameters that have their defaults.

    Raises:
        NoCounterpartError: The step refuses the parameters.
    """
    model = STEPS.find(step)
    given = to_plain_types(parameters | ({} if p is None else {"p": p}))
    try:
        checked = model.model_validate(given)
    except pydantic.ValidationError as e:
        raise NoCounterpartError(str(e)) from e
    return write_step(step, checked, given)


def as_one(items: Sequence[Any]) -> Any:
    """Return one step that runs several, for the list of random_choice or random_order."""
    if len(items) == 1:
        return items[0]
    if not items:
        return "identity"
    on = (
        {"on": next(item[_name(item)]["on"] for item in items if is_on(item))}
        if any(map(is_on, items))
        else {}
    )
    return {"random_apply": {"p": 1.0, "transforms": [without_on(item) for item in items], **on}}


def _name(item: Any) -> str:
    return item if isinstance(item, str) else str(next(iter(item)))


def is_on(item: Any) -> bool:
    """Return whether a step names the fields on which it works."""
    return isinstance(item, dict) and "on" in item[_name(item)]


def without_on(item: Any) -> Any:
    """Return a step without `on`, as containers hold it, which have that themselves."""
    if not is_on(item):
        return item
    name = _name(item)
    rest = {key: value for key, value in item[name].items() if key != "on"}
    return {name: rest} if rest else name
