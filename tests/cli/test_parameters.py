"""Fields of settings in words."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import Field

from gpupipe.cli.parameters import describe_parameters, summarize
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.pipeline.step_registry import STEPS


class Inner(pydantic.BaseModel):
    """Settings inside others.

    Attributes:
        depth: How deep. Another sentence.
    """

    depth: int = 1


class Base(pydantic.BaseModel):
    """Settings of all.

    Attributes:
        inherited: What all have.
    """

    inherited: bool = True


class Settings(Base):
    """Settings for a test. They have
    two lines.

    Attributes:
        required: What is required.
        share: A share.
        sides: Two sides.
        names: Names of things.
        mode: One of three.
        root: A folder.
        maximum: None by default.
        inner: More settings.
        huge: A seed.
    """

    required: str
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    sides: tuple[int, int] = (1, 2)
    names: list[str] = Field(default_factory=list)
    mode: Literal["fast", "slow", 3] = "fast"
    root: Path | int = 3
    maximum: Annotated[int, Field(gt=0)] | None = None
    inner: Inner = Inner()
    huge: Annotated[int, Field(ge=0, lt=2**64)] = 7


PARAMETERS = {parameter.name: parameter for parameter in describe_parameters(Settings)}


@pytest.mark.parametrize(
    ("name", "type_text", "default"),
    [
        ("required", "text", ""),
        ("share", "number, 0 to 1", "0.5"),
        ("sides", "list of 2 whole numbers", "[1, 2]"),
        ("names", "list of texts", "[]"),
        ("mode", "fast, slow or 3", "fast"),
        ("root", "path or whole number", "3"),
        ("maximum", "whole number, above 0", "none"),
        ("huge", "whole number, at least 0", "7"),
        ("inherited", "true or false", "true"),
    ],
)
def test_types_and_defaults_in_words(name: str, type_text: str, default: Any) -> None:
    found = PARAMETERS[name]
    assert (found.type_text, found.default) == (type_text, default)
    assert found.is_required is (name == "required")
    assert found.model is None


@pytest.mark.parametrize(
    ("step", "name", "type_text"),
    [
        ("random_affine", "degrees", "number or [min, max]"),
        ("random_affine", "translate", "[width, height], each 0 to 1"),
        ("color_jitter", "hue", "number or [min, max], each -0.5 to 0.5"),
        ("random_resized_crop", "scale", "[min, max], each above 0"),
        ("pad", "fill", "number or list of numbers"),
    ],
)
def test_a_list_of_numbers_has_its_short_form_and_its_names(
    step: str, name: str, type_text: str
) -> None:
    found = {parameter.name: parameter for parameter in describe_parameters(STEPS.find(step))}
    assert found[name].type_text == type_text


def test_a_field_of_more_settings_has_their_model() -> None:
    inner = PARAMETERS["inner"]
    assert (inner.type_text, inner.model) == ("mapping", Inner)
    assert describe_parameters(Inner)[0].meaning == "How deep."


def test_own_fields_come_before_inherited_ones() -> None:
    names = [parameter.name for parameter in describe_parameters(Settings)]
    assert (names[0], names[-1]) == ("required", "inherited")


def test_a_summary_ends_where_sections_begin_and_has_a_line_a_paragraph() -> None:
    assert summarize(Settings) == "Settings for a test. They have two lines."


def test_all_settings_and_steps_have_words() -> None:
    models = [LoaderConfig, *map(STEPS.find, STEPS.builtin_names)]
    for model in models:
        for parameter in describe_parameters(model):
            field = f"{model.__name__}.{parameter.name}: {parameter.type_text}"
            assert parameter.meaning, field
            assert "typing" not in parameter.type_text, field
            names = re.findall(r"\[([^]]*)\]", parameter.type_text)
            assert all(re.fullmatch(r"[a-z]+(, [a-z]+)+", part) for part in names), field
