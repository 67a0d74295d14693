"""Types of settings in YAML, with torchvision's short forms."""

import math
import re
from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, WrapValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from gpupipe.runtime.files import expand_user

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Resampling = Literal["nearest", "bilinear"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]

_MAX_CHANNELS = 1024


def should_be(rule: str) -> PydanticCustomError:
    """Return a validation error with the message that a value "should be `rule`".

    Validators raise it when pydantic's own message says too little.
    """
    return PydanticCustomError("form", "{rule}", {"rule": rule})


def wrong_key(advice: str) -> PydanticCustomError:
    """Return a validation error about a key that must not exist; `advice` is the message.

    Validators raise it for keys that pydantic does not know.
    """
    return PydanticCustomError("wrong_key", "{advice}", {"advice": advice})


def _refuse_bool(error: Literal["int_type", "float_type"]) -> BeforeValidator:
    """Return a validator that refuses bool, a subclass of int, with pydantic's error `error`."""

    def check(value: Any) -> Any:
        if isinstance(value, bool):
            raise PydanticKnownError(error)
        return value

    return BeforeValidator(check)


def _check_bytes(value: Any) -> Any:
    if isinstance(value, bool) or not re.fullmatch(
        r"\s*[0-9]+(\.[0-9]+)?\s*([kKmMgGtTpP]i?)?[bB]?\s*", str(value)
    ):
        raise should_be("bytes: a number, or one such as 64MB, 500GB or 2TiB")
    return value


def expand_home(path: Path) -> Path:
    """Expand ~ in a path.

    Raises:
        ValueError: There is no such home directory.
    """
    expanded = expand_user(path)
    if expanded.parts[:1] == path.parts[:1] and str(path).startswith("~"):
        raise ValueError(f"{path} names a home directory that cannot be found: write it out")
    return expanded


WHOLE = _refuse_bool("int_type")
"""Annotates int: `batch_size: yes` must not mean 1."""
NUMBER = _refuse_bool("float_type")
"""Annotates float, to refuse bool in the same way."""


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float, and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a number, and neither infinite nor NaN."""
    return is_number(value) and math.isfinite(value)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is an int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_list(value: Any, lengths: Container[int], rule: str) -> list[Any]:
    """Return `value` as a list; a number becomes a list of one.

    Raises:
        PydanticCustomError: `value` is neither a number nor a list, or the length of the list is
            not in `lengths`. The message says that the value should be `rule`.
    """
    values = [value] if is_number(value) else value
    if not isinstance(values, (list, tuple)) or len(values) not in lengths:
        raise should_be(rule)
    return list(values)


def one_for_both(rule: str) -> BeforeValidator:
    """Return a validator of a list of two numbers. A single number a, or [a], becomes [a, a].

    Its message about any other value is "should be `rule`".
    """
    return BeforeValidator(lambda value: (check_list(value, (1, 2), rule) * 2)[-2:])


def two_numbers(rule: str) -> BeforeValidator:
    """Return a validator of a list of two numbers.

    Its message about any other value is "should be `rule`".
    """
    return BeforeValidator(lambda value: check_list(value, (2,), rule))


def spread(
    rule: str, center: float = 0.0, lowest: float = -math.inf, max_spread: float = math.inf
) -> BeforeValidator:
    """Return a validator of [min, max], or of a number a, short for [center - a, center + a].

    Args:
        rule: The end of the message "should be ..." about a wrong value.
        center: The center of the range that a number a expands to.
        lowest: The min of the range that a number expands to is at least this.
        max_spread: The largest a that is valid.
    """

    def expand(value: Any) -> list[Any]:
        if not is_number(value):
            return check_list(value, (2,), rule)
        if not 0 <= value <= max_spread:
            raise should_be(rule)
        # -0.0 for 0.0: the fingerprints of pipelines in saved states have it.
        low = center - value if center else -value
        return [max(lowest, low), center + value]

    return BeforeValidator(expand)


class Short(tuple[int, ...]):
    """The sides or margins of a 2-D image, expanded from fewer numbers in the YAML.

    Attributes:
        written: The numbers in the YAML. For inputs with other spatial axes, such as volumes,
            `expand_sides` and `expand_margins` start from these.
    """

    written: tuple[int, ...]


def _written(full: int, longer: tuple[int, ...], rule: str) -> WrapValidator:
    """Return a validator of a list of `full` numbers. A valid shorter list becomes a Short.

    Args:
        full: The count of numbers for an image.
        longer: Larger counts that are also valid, for arrays with more axes than an image.
        rule: The end of the message "should be ..." about a wrong value.
    """

    def read(value: Any, handler: Callable[[Any], tuple[int, ...]]) -> tuple[int, ...]:
        lengths = [length for length in range(1, full + 1) if full % length == 0]
        numbers = check_list(value, (*lengths, *longer), rule)
        if len(numbers) in longer or len(numbers) == full:
            return handler(numbers)
        short = Short(handler(numbers * (full // len(numbers))))
        short.written = short[: len(numbers)]
        return short

    return WrapValidator(read)


def _one_for_all(value: Any) -> Any:
    rule = "one number, or a list with one for each channel"
    return check_list(value, range(1, _MAX_CHANNELS + 1), rule)


class FillByKind(tuple[float, ...]):
    """The fill of images, which has the fill of masks as an attribute.

    It comes from `{image: ..., mask: ...}` in YAML.

    Attributes:
        mask: The fill of masks. See `mask_fill`.
    """

    mask: tuple[float, ...]


def mask_fill(fill: tuple[float, ...] | None) -> tuple[float, ...]:
    """Return the fill of masks: the value of `mask:` in the YAML, or 0 if there is no `mask:`."""
    return fill.mask if isinstance(fill, FillByKind) else (0.0,)


def read_fill(value: Any, handler: Callable[[Any], tuple[float, ...]]) -> tuple[float, ...]:
    """Return the fill of images from the YAML; `handler` checks the numbers.

    A fill is a number, a list with one for each channel, or {image: ..., mask: ...}, each with a
    number or a list.
    """
    if not isinstance(value, dict):
        return handler(_one_for_all(value))
    if value.keys() != {"image", "mask"}:
        raise should_be(
            "{image: ..., mask: ...}, each one number, or a list with one for each channel"
        )
    fill = FillByKind(handler(_one_for_all(value["image"])))
    fill.mask = handler(_one_for_all(value["mask"]))
    return fill


def check_ordered(value: tuple[float, ...]) -> tuple[float, ...]:
    """Return `value`, a flat (min, max, min, max, ...); raise an error if a min exceeds its max."""
    pairs = [sorted(value[i : i + 2]) for i in range(0, len(value), 2)]
    ascending = [n for pair in pairs for n in pair]
    if ascending != list(value):
        raise should_be(f"[{', '.join(f'{n:.15g}' for n in ascending)}]: the smaller number first")
    return value


ORDERED = AfterValidator(check_ordered)
"""Annotates pairs of [min, max], to reject a min above its max."""

Bytes = Annotated[ByteSize, BeforeValidator(_check_bytes), Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False), NUMBER]
Side = Annotated[int, Field(ge=1, le=65535), WHOLE]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Level = Annotated[float, Field(ge=0, le=255, allow_inf_nan=False), NUMBER]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), NUMBER]
Pixels = Annotated[int, Field(ge=0, le=65535), WHOLE]

Size = Annotated[tuple[Side, Side], one_for_both("one number, or [height, width]")]
Window = Annotated[tuple[Side, ...], _written(2, (3,), "one number, or [height, width]")]
"""[height, width] of an image; `expand_sides` adapts it to arrays with other axes."""
Padding = Annotated[
    tuple[Pixels, ...],
    _written(
        4, (6,), "one number, [left and right, top and bottom], or [left, top, right, bottom]"
    ),
]
"""[left, top, right, bottom] of an image; `expand_margins` adapts it to arrays with other axes."""
PositiveRange = Annotated[
    tuple[Positive, Positive], two_numbers("[min, max], both above 0"), ORDERED
]
Degrees = Annotated[
    tuple[Finite, Finite], spread("a number a of at least 0 for [-a, a], or [min, max]"), ORDERED
]
Point = Annotated[tuple[Finite, Finite], two_numbers("[x, y] in pixels")]
Shares = Annotated[tuple[Probability, Probability], two_numbers("[x, y], each from 0 to 1")]
Fill = Annotated[tuple[Level, ...], WrapValidator(read_fill)]
"""The value outside an image, 0 to 255; or {image: ..., mask: ...}, like torchvision's dict."""
AnyFill = Annotated[tuple[Finite, ...], WrapValidator(read_fill)]
"""Like `Fill`, but in units of the array's values. `spec_checks.check_fill` checks the range."""
Value = Annotated[tuple[Finite, ...], BeforeValidator(_one_for_all)]
"""One number, or one per channel, in units of the array's values."""
PositiveChannels = Annotated[tuple[Positive, ...], BeforeValidator(_one_for_all)]
