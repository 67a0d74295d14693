"""Tests for gpupipe.schema.validation_errors."""

import pydantic
import pytest

from gpupipe.schema.validation_errors import to_problems
from gpupipe.schema.yaml_files import parse


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


class Window(pydantic.BaseModel):
    """A window."""

    least: int
    most: int

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> "Window":
        if self.least > self.most:
            raise ValueError("least and most are in the wrong order: swap them")
        return self


@pytest.mark.parametrize(
    ("prefix", "what"), [("", ""), ("crop", "crop: ")], ids=["no name", "a name"]
)
def test_a_mistake_of_several_keys_together_has_no_empty_name(prefix: str, what: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        Window.model_validate({"least": 2, "most": 1})
    (problem,) = to_problems(error.value, Window, parse("{}", "w.yaml"), prefix=prefix)
    assert problem.what == f"{what}least and most are in the wrong order: swap them"


class Wall(pydantic.BaseModel):
    """A wall."""

    opening: str | Window


def test_a_mapping_that_breaks_the_rule_of_its_model_is_told_this_rule_alone() -> None:
    value = {"opening": {"least": 2, "most": 1}}
    with pytest.raises(pydantic.ValidationError) as error:
        Wall.model_validate(value)
    text = "opening: {least: 2, most: 1}"
    (problem,) = to_problems(error.value, Wall, parse(text, "wall.yaml"))
    assert problem.what == "opening: least and most are in the wrong order: swap them"
