"""Messages quote the first sentence about a field in a docstring: each must read well there."""

import typing
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from gpupipe.batch_stage.batch_step import BATCH_STEPS
from gpupipe.config.validation import TopLevel
from gpupipe.dataset import source
from gpupipe.pipeline.step_registry import STEPS
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


ROOTS: dict[str, list[Model]] = {
    "settings": [TopLevel],
    "sources": [source.SOURCES.find(name) for name in source.SOURCES.names()],
    "steps": [STEPS.find(name) for name in sorted(STEPS.builtin_names)],
    "batch steps": [BATCH_STEPS.find(name) for name in sorted(BATCH_STEPS.builtin_names)],
}
MODELS = {
    kind: list(dict.fromkeys(model for root in roots for model in models_of(root)))
    for kind, roots in ROOTS.items()
}


def fields_of(kind: str) -> Iterator[tuple[Model, str, str]]:
    """Yield each field of some models: the model, the field's name, and both for a message."""
    for model in MODELS[kind]:
        for name in model.model_fields:
            yield model, name, f"{model.__name__}.{name}"


@pytest.mark.parametrize("kind", MODELS)
def test_the_first_sentence_about_a_field_can_be_quoted(kind: str) -> None:
    for model, name, field in fields_of(kind):
        sentence = describe_field(model, name)
        assert sentence.endswith(".") and not sentence.endswith(".."), f"{field}: {sentence}"
        assert "\n" not in sentence, field
        assert 1 < len(sentence.split()) < 25, f"{field}: a few words, and under 25"
        assert sentence.count("(") == sentence.count(")"), field


@pytest.mark.parametrize("kind", MODELS)
def test_every_mistake_in_a_field_is_one_plain_line(kind: str) -> None:
    for model, name, field in fields_of(kind):
        found = [mistakes(model, {name: value}, name) for value in WRONG]
        assert any(found), f"{field}: no value is refused"
        for problem in (problem for problems in found for problem in problems):
            assert problem.startswith((name, "fields: ")), f"{field}: {problem}"
            assert "\n" not in problem, field
            assert len(problem) < 450, f"{field}: {problem}"
            assert not JARGON.search(problem), f"{field}: {problem}"


@pytest.mark.parametrize("kind", MODELS)
def test_missing_and_unknown_keys_are_one_plain_line(kind: str) -> None:
    for model in MODELS[kind]:
        required = [name for name, field in model.model_fields.items() if field.is_required()]
        problems = [str(p) for p in problems_of(model, {"zzz": 1})]
        if model.model_config.get("extra") != "allow":
            unknown = [p for p in problems if "unknown key" in p]
            assert len(unknown) == 1, model.__name__
            assert unknown[0].startswith("f: zzz: unknown key"), model.__name__
        missing = [p for p in problems if "missing" in p]
        for name in required:
            quoted = describe_field(model, name).removesuffix(".")[1:]
            assert any(f"write '{name}: ...' (" in p and quoted in p for p in missing), (
                f"{model.__name__}: {missing}"
            )


def mistakes(model: Model, data: dict[str, Any], name: str) -> list[str]:
    """What is wrong with a field, without what is wrong with the others."""
    return [p.what for p in problems_of(model, data) if p.what.startswith(name)]


def problems_of(model: Model, data: dict[str, Any]) -> list[Any]:
    try:
        model.model_validate(data)
    except pydantic.ValidationError as error:
        return to_problems(error, model, Document("f", data))
    return []
