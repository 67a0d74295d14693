"""Reads the arguments of a DALI operator from YAML: plain values, and draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError

from gpupipe.errors import did_you_mean
from gpupipe.sampling.draws import Choice, Distribution, Flip, Normal, Uniform, Vector
from gpupipe.schema.field_types import is_number, should_be, wrong_key
from gpupipe.steps.dali_operators.operators import Argument, Operator

DRAWS = "{uniform: [min, max]}, {normal: [mean, std]}, {choice: [...]} or {flip: p}"
_DRAWS = ("uniform", "normal", "choice", "flip")
_WORDS = {"number": "a number", "whole": "a whole number", "flag": "true or false", "text": "text"}


class _Wrong(Exception):
    """A value is wrong.

    Args:
        rule: The error.
        value: The value.
        *loc: Its path of keys below the argument.
    """

    def __init__(self, rule: PydanticCustomError, value: Any, *loc: str) -> None:
        super().__init__(rule.message())
        self.rule, self.value, self.loc = rule, value, loc


@dataclass
class Arguments:
    """The arguments of an operator.

    Attributes:
        constants: The values that all samples share, as DALI takes them.
        draws: The distributions of the others.
        errors: What is wrong, for pydantic.
    """

    constants: dict[str, Any] = field(default_factory=dict)
    draws: dict[str, Distribution] = field(default_factory=dict)
    errors: list[InitErrorDetails] = field(default_factory=list)

    @property
    def num_uniforms(self) -> int:
        """The number of uniform draws that one sample needs."""
        return sum(draw.num_uniforms for draw in self.draws.values())


def read_arguments(operator: Operator, written: Mapping[str, Any]) -> Arguments:
    """Read all arguments of an operator, and collect what is wrong with them.

    Args:
        operator: The operator.
        written: The values in YAML, by name.
    """
    arguments, known = Arguments(), operator.arguments
    for name, value in written.items():
        try:
            if name not in known:
                raise _Wrong(_unknown(operator, name), value)
            _read(known[name], value, arguments)
        except _Wrong as e:
            arguments.errors.append(
                InitErrorDetails(type=e.rule, loc=(name, *e.loc), input=e.value)
            )
    arguments.errors += [
        InitErrorDetails(type="missing", loc=(name,), input=dict(written))
        for name, argument in known.items()
        if argument.is_required and name not in written
    ]
    return arguments


def _unknown(operator: Operator, name: str) -> PydanticCustomError:
    if instead := operator.successor_of(name):
        return wrong_key(f"DALI's argument is deprecated: {instead}")
    return wrong_key(
        f"{operator.name} has no such argument{did_you_mean(name, operator.arguments)}"
    )


def _read(argument: Argument, value: Any, arguments: Arguments) -> None:
    draw = _read_draw(argument, value)
    if draw is None:
        arguments.constants[argument.name] = _read_constant(argument, value)
    elif not argument.takes_tensor:
        raise _Wrong(
            should_be(f"{_rule(argument)}: DALI takes one value of it for all samples"), value
        )
    else:
        arguments.draws[argument.name] = draw


def _read_constant(argument: Argument, value: Any) -> Any:
    if argument.is_list and isinstance(value, list | tuple):
        return [_read_one(argument, part, value) for part in value]
    return _read_one(argument, value, value)


def _read_one(argument: Argument, value: Any, whole_value: Any) -> Any:
    """Return one value as DALI takes it; raise _Wrong, with `whole_value`, if it is wrong."""
    kind, names = argument.kind, argument.names
    if names:
        if isinstance(value, str) and value in names:
            return names[value]
        upper = {n for n in names if n.isupper()} or set(names)
        close = did_you_mean(value.upper(), upper) if isinstance(value, str) else ""
        listed = ", ".join(sorted(upper))
        near = close.removeprefix("; did you mean ").removesuffix("?")
        rule = near if close.startswith("; did you mean") else f"one of {listed}"
        raise _Wrong(should_be(rule), value)
    if kind == "number" and is_number(value) and math.isfinite(value):
        return float(value)
    if kind == "whole" and isinstance(value, int) and not isinstance(value, bool):
        return value
    if (kind == "flag" and isinstance(value, bool)) or (kind == "text" and isinstance(value, str)):
        return value
    if kind == "other":
        raise _Wrong(should_be("left out: DALI takes an object of Python here"), whole_value)
    raise _Wrong(should_be(_rule(argument)), whole_value)


def _rule(argument: Argument) -> str:
    """Return what values an argument takes, in words."""
    one = _WORDS.get(argument.kind, "a name")
    several = f"{one}, or a list of {'whole ' * (argument.kind == 'whole')}numbers"
    words = several if argument.is_list and argument.kind in ("number", "whole") else one
    return f"{words}, or {DRAWS}" if _takes_draws(argument) else words


def _takes_draws(argument: Argument) -> bool:
    return argument.takes_tensor and argument.kind in ("number", "whole")


def _read_draw(argument: Argument, value: Any) -> Distribution | None:
    """Return the distribution that a value asks for; None if it is a plain value."""
    if isinstance(value, dict):
        return _read_distribution(argument, value)
    if not isinstance(value, list | tuple) or not any(isinstance(part, dict) for part in value):
        return None
    if not argument.is_list:
        raise _Wrong(should_be(_rule(argument)), value)
    return Vector(
        tuple(
            _read_distribution(argument, part)
            if isinstance(part, dict)
            else _read_one(argument, part, value)
            for part in value
        )
    )


def _read_distribution(argument: Argument, value: dict[str, Any]) -> Distribution:
    if len(value) != 1 or next(iter(value)) not in _DRAWS:
        unknown = next((key for key in value if key not in _DRAWS), None)
        if isinstance(unknown, str) and len(value) == 1:
            raise _Wrong(
                wrong_key(f"there is no such draw{did_you_mean(unknown, _DRAWS)}"), value, unknown
            )
        raise _Wrong(should_be(_rule(argument)), value)
    (name, parameters), whole = next(iter(value.items())), argument.kind == "whole"
    if argument.kind not in ("number", "whole"):
        raise _Wrong(
            should_be(f"{_rule(argument)}, the same for all samples: only numbers are drawn"), value
        )
    if name == "flip":
        if not is_number(parameters) or not 0 <= parameters <= 1:
            raise _Wrong(should_be("a probability from 0 to 1"), parameters, name)
        return Flip(float(parameters))
    if name == "choice":
        return _read_choice(argument, parameters)
    pair = parameters if isinstance(parameters, list | tuple) else ()
    if len(pair) != 2 or not all(is_number(n) and math.isfinite(n) for n in pair):
        words = "[min, max]" if name == "uniform" else "[mean, std]"
        raise _Wrong(should_be(f"two numbers, {words}"), parameters, name)
    first, second = pair
    if name == "normal":
        if second < 0:
            raise _Wrong(should_be("[mean, std], with std of at least 0"), parameters, name)
        return Normal(float(first), float(second), whole)
    if first > second:
        raise _Wrong(
            should_be(f"[{second:.15g}, {first:.15g}]: the smaller number first"), parameters, name
        )
    if whole and not all(isinstance(n, int) for n in pair):
        raise _Wrong(should_be("two whole numbers, [min, max]"), parameters, name)
    return Uniform(float(first), float(second), whole)


def _read_choice(argument: Argument, values: Any) -> Choice:
    rule = should_be("a list of values, such as [1, 2, 3]")
    if not isinstance(values, list | tuple) or not values:
        raise _Wrong(rule, values, "choice")
    try:
        read = [_read_constant(argument, value) for value in values]
    except _Wrong as e:
        raise _Wrong(rule, values, "choice") from e
    lengths = {len(value) if isinstance(value, list) else 0 for value in read}
    if len(lengths) > 1:
        raise _Wrong(should_be("a list of values of equal length"), values, "choice")
    return Choice(tuple(tuple(v) if isinstance(v, list) else v for v in read))
