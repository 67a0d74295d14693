"""Messages quote the first sentence about a field in a docstring: each must read well there."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from gpupipe.batch_stage import registry
from gpupipe.config.validation import TopLevel
from gpupipe.dataset import source
from gpupipe.pipeline import step_registry
from gpupipe.schema.document import Document
from gpupipe.schema.validation_errors import describe_field, to_problems
from helpers.config_texts import JARGON

Model = type[pydantic.BaseModel]
WRONG: list[Any] = [None, True, -7, 1e300, float("nan"), "nonsense", [], ["nonsense"], {"zzz": 1}]


def models_of(model: Model) -> Iterator[Model]:
    """Yield a model, and all models that are types of its fields, at any depth."""
    yield model
    for field in model.model_fields.values():
        types = [field.annotation]
        while types:
            kind = types.pop()
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
                yield from models_of(kind)
            types += typing.get_args(kind)


MODELS = dict.fromkeys(
    model
    for root in (
        TopLevel,
        *map(source.find_source, source.list_sources()),
        *map(step_registry.find, sorted(step_registry.builtin_names())),
        *map(registry.find, sorted(registry.builtin_names())),
    )
    for model in models_of(root)
)
FIELDS = [(model, name) for model in MODELS for name in model.model_fields]


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_the_first_sentence_about_a_field_can_be_quoted(model: Model, name: str) -> None:
    sentence = describe_field(model, name)
    assert sentence.endswith(".") and not sentence.endswith(".."), sentence
    assert "\n" not in sentence
    assert 1 < len(sentence.split()) < 25, "a few words, and under 25"
    assert sentence.count("(") == sentence.count(")")


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=lambda x: getattr(x, "__name__", x))
def test_every_mistake_in_a_field_is_one_plain_line(model: Model, name: str) -> None:
    refused = [problems for value in WRONG if (problems := mistakes(model, {name: value}, name))]
    assert refused, "no value is refused"
    for problem in (problem for problems in refused for problem in problems):
        assert problem.startswith((name, "fields: ")), problem
        assert "\n" not in problem
        assert len(problem) < 400
        assert not JARGON.search(problem), problem


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_missing_and_unknown_keys_are_one_plain_line(model: Model) -> None:
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    problems = [str(p) for p in problems_of(model, {"zzz": 1})]
    if model.model_config.get("extra") != "allow":
        (unknown,) = [p for p in problems if "unknown key" in p]
        assert unknown.startswith("f: zzz: unknown key")
    missing = [p for p in problems if "missing" in p]
    for name in required:
        quoted = describe_field(model, name).removesuffix(".")[1:]
        assert any(f"write '{name}: ...' (" in p and quoted in p for p in missing), missing


def mistakes(model: Model, data: dict[str, Any], name: str) -> list[str]:
    """What is wrong with a field, without what is wrong with the others."""
    return [p.what for p in problems_of(model, data) if p.what.startswith(name)]


def problems_of(model: Model, data: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(data)
    except pydantic.ValidationError as error:
        return to_problems(error, model, Document("f", data))
    return []
