"""Tests for gpupipe.schema.validation_errors."""

from __future__ import annotations

import pydantic
import pytest

from gpupipe.schema.validation_errors import to_problems
from gpupipe.schema.yaml_parser import parse


class Lens(pydantic.BaseModel):
    """A lens.

    Attributes:
        width, height: The size in pixels. At least 1.
        focus (float): The distance, which may be written
            on two lines. It is in metres.
        mode: RGB or gray.
    """

    width: int
    height: int
    focus: float
    mode: str
    maker: str


@pytest.mark.parametrize(
    ("field", "meaning"),
    [
        ("width", " (the size in pixels)"),
        ("height", " (the size in pixels)"),
        ("focus", " (the distance, which may be written on two lines)"),
        ("mode", " (RGB or gray)"),
        ("maker", ""),
    ],
)
def test_a_missing_field_quotes_the_first_sentence_of_its_docstring(
    field: str, meaning: str
) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Lens.model_validate({})
    problems = to_problems(error.value, Lens, parse("{}", "lens.yaml"))
    by_field = {p.what.partition(":")[0]: p.what for p in problems}
    assert by_field[field] == f"{field}: missing; write '{field}: ...'{meaning}"
