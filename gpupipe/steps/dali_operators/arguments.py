"""Reads the arguments of a DALI operator from YAML: plain values, and draws."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError

from gpupipe.errors import did_you_mean, nearest
from gpupipe.sampling.draws import Choice, Distribution, Flip, Normal, Uniform, Vector
from gpupipe.schema.field_types import is_finite, is_number, is_whole, should_be, wrong_key
from gpupipe.steps.dali_operators.operators import Argument, Kind, Operator

DRAWS = "{uniform: [min, max]}, {normal: [mean, std]}, {choice: [...]} or {flip: p}"
_KINDS: dict[Kind, tuple[str, str, Callable[[Any], bool]]] = {
    "number": ("a number", "a number, or a list of numbers", is_finite),
    "whole": ("a whole number", "a whole number, or a list of whole numbers", is_whole),
    "flag": ("true or false", "true or false", lambda value: isinstance(value, bool)),
    "text": ("text", "text", lambda value: isinstance(value, str)),
}
"""For each kind: one value in words, a list in words, and a function that checks one value."""


class _ArgumentError(Exception):
    """The value of an argument is wrong.

    Args:
        rule: The error for pydantic, which has the message.
        value: The wrong value.
        *loc: The path of keys from the argument to the value, such as "uniform".
    """

    def __init__(self, rule: PydanticCustomError, value: Any, *loc: str) -> None:
        super().__init__(rule.message())
        self.rule, self.value, self.loc = rule, value, loc


def _refuse(expected: str, value: Any, *loc: str) -> _ArgumentError:
    """Return an error for the caller to raise: `value` is wrong, and should be `expected`."""
    return _ArgumentError(should_be(expected), value, *loc)


@dataclass
class Arguments:
    """The arguments of a DALI operator, as read from YAML, and the mistakes in them.

    Attributes:
        constants: Maps argument names to values, for arguments with one value for all samples. The
            values have DALI's types.
        draws: Maps argument names to distributions, for arguments that are drawn per sample.
        errors: The mistakes in the arguments as they are written in YAML, for pydantic.
    """

    constants: dict[str, Any] = field(default_factory=dict)
    draws: dict[str, Distribution] = field(default_factory=dict)
    errors: list[InitErrorDetails] = field(default_factory=list)

    @property
    def num_uniforms(self) -> int:
        """The number of uniform draws that one sample needs."""
        return sum(draw.num_uniforms for draw in self.draws.values())


def read_arguments(operator: Operator, written: Mapping[str, Any]) -> Arguments:
    """Read all arguments of an operator. Mistakes are in `errors` of the result: none is raised.

    Args:
        operator: The operator that takes the arguments.
        written: Maps the names of arguments to their values in YAML.
    """
    arguments, known = Arguments(), operator.arguments
    for name, value in written.items():
        try:
            if name not in known:
                raise _ArgumentError(_unknown(operator, name), value)
            _read(known[name], value, arguments)
        except _ArgumentError as e:
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
    hint = did_you_mean(name, operator.arguments)
    return wrong_key(f"{operator.name} has no such argument{hint}")


def _read(argument: Argument, value: Any, arguments: Arguments) -> None:
    draw = _read_draw(argument, value)
    if draw is None:
        arguments.constants[argument.name] = _read_constant(argument, value)
    elif not argument.takes_tensor:
        raise _refuse(f"{_rule(argument)}: DALI takes one value of it for all samples", value)
    else:
        arguments.draws[argument.name] = draw


def _read_constant(argument: Argument, value: Any) -> Any:
    if argument.is_list and isinstance(value, list | tuple):
        return [_read_one(argument, part, value) for part in value]
    return _read_one(argument, value, value)


def _read_one(argument: Argument, value: Any, whole_value: Any) -> Any:
    """Return one value in DALI's type; if it is wrong, raise an error about `whole_value`."""
    if argument.names:
        return _read_name(argument.names, value)
    if argument.kind == "other":
        raise _refuse("left out: DALI takes an object of Python here", whole_value)
    if not _KINDS[argument.kind][2](value):
        raise _refuse(_rule(argument), whole_value)
    return float(value) if argument.kind == "number" else value


def _read_name(names: Mapping[str, Any], value: Any) -> Any:
    """Return DALI's constant for a name such as INTERP_LINEAR; raise an error if there is none."""
    if isinstance(value, str) and value in names:
        return names[value]
    upper = {n for n in names if n.isupper()} or set(names)
    near = nearest(value.upper(), upper) if isinstance(value, str) else None
    raise _refuse(f"'{near}'" if near else f"one of {', '.join(sorted(upper))}", value)


def _rule(argument: Argument) -> str:
    """Describe the values that an argument may have, for messages."""
    one, several, _ = _KINDS.get(argument.kind, ("a name", "a name", None))
    form = several if argument.is_list else one
    takes_draws = argument.takes_tensor and argument.kind in ("number", "whole")
    return f"{form}, or {DRAWS}" if takes_draws else form


def _read_draw(argument: Argument, value: Any) -> Distribution | None:
    """Return the distribution that a value describes; None for a plain value."""
    if isinstance(value, dict):
        return _read_distribution(argument, value)
    if not isinstance(value, list | tuple) or not any(isinstance(part, dict) for part in value):
        return None
    if not argument.is_list:
        raise _refuse(_rule(argument), value)
    return Vector(
        tuple(
            _read_distribution(argument, part)
            if isinstance(part, dict)
            else _read_one(argument, part, value)
            for part in value
        )
    )


def _read_distribution(argument: Argument, value: dict[str, Any]) -> Distribution:
    if len(value) != 1:
        raise _refuse(_rule(argument), value)
    ((name, parameters),) = value.items()
    if name not in _READERS:
        rule = wrong_key(f"there is no such draw{did_you_mean(str(name), _READERS)}")
        raise _ArgumentError(rule, value, name)
    if argument.kind not in ("number", "whole"):
        one = f"{_rule(argument)}, the same for all samples"
        raise _refuse(f"{one}: only numbers are drawn", value)
    return _READERS[name](argument, parameters)


def _read_flip(argument: Argument, p: Any) -> Flip:
    if not is_number(p) or not 0 <= p <= 1:
        raise _refuse("a probability from 0 to 1", p, "flip")
    return Flip(float(p))


def _read_pair(value: Any, form: str, name: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(is_finite, value)):
        raise _refuse(f"two numbers, {form}", value, name)
    return float(value[0]), float(value[1])


def _read_normal(argument: Argument, value: Any) -> Normal:
    mean, std = _read_pair(value, "[mean, std]", "normal")
    if std < 0:
        raise _refuse("[mean, std], with std of at least 0", value, "normal")
    return Normal(mean, std, argument.kind == "whole")


def _read_uniform(argument: Argument, value: Any) -> Uniform:
    low, high = _read_pair(value, "[min, max]", "uniform")
    if low > high:
        raise _refuse(f"[{high:.15g}, {low:.15g}]: the smaller number first", value, "uniform")
    if argument.kind == "whole" and not all(map(is_whole, value)):
        raise _refuse("two whole numbers, [min, max]", value, "uniform")
    return Uniform(low, high, argument.kind == "whole")


def _read_choice(argument: Argument, values: Any) -> Choice:
    wrong = _refuse("a list of values, such as [1, 2, 3]", values, "choice")
    if not isinstance(values, list | tuple) or not values:
        raise wrong
    try:
        read = [_read_constant(argument, value) for value in values]
    except _ArgumentError:
        raise wrong from None
    if len({len(value) if isinstance(value, list) else 0 for value in read}) > 1:
        raise _refuse("a list of values of equal length", values, "choice")
    return Choice(tuple(tuple(v) if isinstance(v, list) else v for v in read))


_READERS: dict[str, Callable[[Argument, Any], Distribution]] = {
    "uniform": _read_uniform,
    "normal": _read_normal,
    "choice": _read_choice,
    "flip": _read_flip,
}
