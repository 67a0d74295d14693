"""pydantic's errors as problems of a YAML file: where, the value, the rule, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pydantic

from gpupipe.errors import Problem, did_you_mean
from gpupipe.yamlfile import Document, Key, Loc

_KNOWN_WORDS = {"Input should be": "should be", "Value error, ": ""}


def complaints(error: pydantic.ValidationError, model: type[pydantic.BaseModel], document: Document, loc: Loc = (), prefix: str = "") -> list[Problem]:
    """One problem for each place that is wrong. `loc`: where what `model` validated stands; `prefix`: what to call it."""
    grouped: dict[Loc, list[Any]] = {}
    for detail in error.errors(include_url=False):
        place = _in_document((*loc, *detail["loc"]), document, detail["type"])
        grouped.setdefault(place, []).append(detail)
    return [_problem(place, details, document, len(loc), prefix, model) for place, details in grouped.items()]


def _in_document(place: Loc, document: Document, kind: str) -> Loc:
    """`place` without what pydantic adds for the branches of a union: cut where the document ends."""
    if kind == "missing":
        return place
    while place and place not in document.values and place not in document.keys:
        place = place[:-1]
    return place


def _problem(place: Loc, details: list[Any], document: Document, depth: int, prefix: str, model: Any) -> Problem:
    first = details[0]
    name = ".".join(_names(prefix, place[depth:]))
    if first["type"] == "extra_forbidden":
        return Problem(document.where(place, of_key=True), f"{name}: unknown key{did_you_mean(str(place[-1]), _known(model, place[depth:-1]))}")
    if first["type"] == "missing":
        return Problem(document.where(place[:-1], of_key=True), f"{name}: missing; it must be given")
    rules = list(dict.fromkeys(_rule(d["msg"]) for d in details))
    value = first["input"]
    said = "" if isinstance(value, dict) or first["type"] == "value_error" else f" is {value!r}, but"
    return Problem(document.where(place), f"{name}{said or ':'} {' or '.join(rules)}")


def _names(prefix: str, place: Iterable[Key]) -> list[str]:
    return [str(part) for part in ((prefix, *place) if prefix else place)]


def _rule(message: str) -> str:
    for known, ours in _KNOWN_WORDS.items():
        message = message.replace(known, ours)
    return message


def _known(model: Any, inner: Loc) -> list[str]:
    """The keys that `model` takes, or the model of its field at `inner`."""
    for part in inner:
        field = model.model_fields.get(part) if model else None
        model = next((a for a in (field.annotation, *get_args(field.annotation)) if hasattr(a, "model_fields")), None) if field else None
    return list(model.model_fields) if model else []
