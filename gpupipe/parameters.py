"""The types of step parameters in YAML, each with torchvision's short forms."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Resampling = Literal["nearest", "bilinear"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _square(value: Any) -> Any:
    if _number(value):
        return (value, value)
    return (value[0], value[0]) if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _four_sides(value: Any) -> Any:
    if _number(value):
        return (value,) * 4
    return (*value, *value) if isinstance(value, (list, tuple)) and len(value) == 2 else value


def _both_ways(value: Any) -> Any:
    return (-value, value) if _number(value) and value >= 0 else value


def _one_for_all(value: Any) -> Any:
    return (value,) if _number(value) else value


def _ordered(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError(f"the first number must not be above the second: write [{value[1]}, {value[0]}]")
    return value


Side = Annotated[int, Field(ge=1, le=65535)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Level = Annotated[float, Field(ge=0, le=255)]
Probability = Annotated[float, Field(ge=0, le=1)]
Pixels = Annotated[int, Field(ge=0, le=65535)]

Size = Annotated[tuple[Side, Side], BeforeValidator(_square)]
Padding = Annotated[tuple[Pixels, Pixels, Pixels, Pixels], BeforeValidator(_four_sides)]
Range = Annotated[tuple[float, float], AfterValidator(_ordered)]
PositiveRange = Annotated[tuple[Positive, Positive], AfterValidator(_ordered)]
Degrees = Annotated[Range, BeforeValidator(_both_ways)]
Point = tuple[float, float]
Fill = Annotated[tuple[Level, ...], BeforeValidator(_one_for_all), Field(min_length=1, max_length=4)]
Channels = Annotated[tuple[float, ...], BeforeValidator(_one_for_all), Field(min_length=1)]
PositiveChannels = Annotated[tuple[Positive, ...], BeforeValidator(_one_for_all), Field(min_length=1)]
