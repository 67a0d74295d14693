"""Turns pydantic's errors into problems of a YAML file.

Each problem has the location of the fault, the value, the rule, and what to write instead.
"""

import inspect
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

import pydantic
from pydantic_core import ErrorDetails

from gpupipe.errors import Problem, did_you_mean, nearest, shown
from gpupipe.schema.document import UNRESOLVED, Document, Loc, Node, join_keys

_Model = type[pydantic.BaseModel]
_Built = TypeVar("_Built", bound=pydantic.BaseModel)

_RULES = {
    "form": "{rule}",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "above {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "below {lt}",
    "missing": "a longer list",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "finite_number": "a finite number",
    "path_type": "a path",
} | {
    f"{kind}_{error}": rule
    for kind, rule in {
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "string": "text",
        "list": "a list",
        "tuple": "a list",
    }.items()
    for error in ("type", "parsing", "from_float", "parsing_size")
}
"""The end of the message "should be ...", by the type of pydantic's error."""
_MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
_OF_TEXT = ("form", "literal_error", "path_type", "string_type")
"""Types of pydantic's errors for fields that may take a text."""
_HINT = "; YAML reads yes, no, on and off as true and false: put a word in quotes"


def build_model(
    node: Node,
    model: type[_Built],
    values: Any,
    prefix: str = "",
    context: Mapping[str, Any] | None = None,
) -> _Built | None:
    """Build a model from the values at a node; report mistakes, and return None if any exist.

    Args:
        node: Where the values are in a document.
        model: The model.
        values: The values.
        prefix: The name of the values in messages.
        context: What validators get as their context.
    """
    try:
        return model.model_validate(values, context=context)
    except pydantic.ValidationError as e:
        node.problems.extend(to_problems(e, model, node.document, node.loc, prefix))
        return None


def to_problems(
    error: pydantic.ValidationError,
    model: _Model,
    document: Document,
    loc: Loc = (),
    prefix: str = "",
) -> list[Problem]:
    """Turn a validation error into one problem for each wrong value.

    Args:
        error: The error that validation raised.
        model: The model that validated the value.
        document: The document that holds the validated value.
        loc: The path of the validated value in the document.
        prefix: The name of the validated value in messages.
    """
    by_loc: dict[Loc, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_loc.setdefault(_locate(detail, document, loc), []).append(detail)
    misspelt = {
        (*location[:-1], _nearest_field(model, location[len(loc) :]))
        for location, details in by_loc.items()
        if details[0]["type"] == "extra_forbidden"
    }
    problems = []
    for location, details in by_loc.items():
        # Of a union, report the branch that matched the value best: it has errors deeper inside.
        superseded = any(
            other[: len(location)] == location
            and len(other) > len(location)
            and by_loc[other][0]["type"] != "missing"
            for other in by_loc
        )
        is_misspelt = details[0]["type"] == "missing" and location in misspelt
        if not superseded and not is_misspelt and document.at(location) is not UNRESOLVED:
            problems.append(_problem(location, details, document, len(loc), prefix, model))
    return problems


def _locate(detail: ErrorDetails, document: Document, loc: Loc) -> Loc:
    """Return the path of an error in the document.

    pydantic's path also names the branches of a union, which are not keys of the document.
    """
    location, last = loc, len(detail["loc"]) - 1
    for i, part in enumerate(detail["loc"]):
        if document.holds((*location, part)) or (
            i == last and detail["type"] == "missing" and isinstance(part, str)
        ):
            location = (*location, part)
    return location


def _problem(
    location: Loc,
    details: list[ErrorDetails],
    document: Document,
    depth: int,
    prefix: str,
    model: _Model,
) -> Problem:
    value, inner = document.at(location), location[depth:]
    first = details[0]
    if isinstance(
        value, Mapping
    ):  # the keys fit one model of the union, which has a rule of its own
        first = next((d for d in details if d["type"] == "value_error"), first)
    name = join_keys((prefix, *inner) if prefix else inner)
    where, of_key = document.where(location), document.where(location, of_key=True)
    match first["type"]:
        case "extra_forbidden":
            return Problem(of_key, f"{name}: unknown key{_suggest(model, inner)}")
        case "wrong_key":
            return Problem(of_key, f"{name}: {first['msg']}")
        case "missing" if not document.holds(location):
            entry = f"write '{location[-1]}: ...'{_quote_description(model, inner)}"
            parent = document.where(location[:-1], of_key=True)
            return Problem(parent, f"{name}: missing; {entry}")
        case "value_error" | "assertion_error":
            rule = first["msg"].partition(", ")[2]
            return Problem(where, f"{name}: {rule}" if name else rule)
    forms = [d for d in details if d["type"] == "form"]
    rules = dict.fromkeys(_rule(d, model, inner, value) for d in forms or details)
    may_be_text = all(d["type"] in _OF_TEXT for d in details) and "number" not in str(rules)
    hint = _HINT if isinstance(value, bool) and may_be_text else ""
    return Problem(where, f"{name} is {shown(value)}, but should be {' or '.join(rules)}{hint}")


def _rule(detail: ErrorDetails, model: _Model, inner: Loc, value: Any) -> str:
    kind = detail["type"]
    if kind in _MAPPINGS:
        inner_model = _model_at(model, inner)
        field = next(iter(own_fields_first(inner_model)), None) if inner_model else None
        if field is None:
            return f"a mapping{_quote_description(model, inner)}"
        is_unknown = inner or value is None
        example = "..." if is_unknown else json.dumps(value, default=str).replace('"', "")
        return f"a mapping, such as {{{field}: {example}}}"
    if kind in _RULES:
        return _RULES[kind].format(**{k: _number(v) for k, v in detail.get("ctx", {}).items()})
    return detail["msg"].removeprefix("Input should be ")


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _model_at(model: Any, inner: Loc) -> _Model | None:
    """Return the model of the field at `inner`; None if the field is no model.

    A field may be a dict of models: then the next part of `inner` is a key of the dict.
    """
    parts = iter(inner)
    for part in parts:
        field = model.model_fields.get(part) if model else None
        if field is None:
            return None
        kinds = (field.annotation, *get_args(field.annotation))
        model = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        if get_origin(field.annotation) is dict and next(parts, None) is None:
            return None
    return model  # type: ignore[no-any-return]  # It has model_fields.


def _nearest_field(model: _Model, inner: Loc) -> str | None:
    """Return the field whose name is most similar to the unknown key at `inner`, or None."""
    holder = _model_at(model, inner[:-1])
    return nearest(str(inner[-1]), holder.model_fields) if holder else None


def _suggest(model: _Model, inner: Loc) -> str:
    """Return a suggestion for an unknown key: where the key belongs, or a similar field."""
    holder, key = _model_at(model, inner[:-1]), str(inner[-1])
    if holder is None:
        return ""
    name, colon, value = key.partition(":")
    if colon and name in holder.model_fields:
        return f"; a blank is missing after the colon: write '{name}: {value or '...'}'"
    for field in (None, *holder.model_fields):
        inner_model = holder if field is None else _model_at(holder, (field,))
        if advice := getattr(inner_model, "advice_for", {}).get(key):
            return f"; under '{field}', {advice}" if field else f"; {advice}"
    deeper = [
        name
        for name in holder.model_fields
        if key in getattr(_model_at(holder, (name,)), "model_fields", {})
    ]
    return f"; it belongs under '{deeper[0]}'" if deeper else did_you_mean(key, holder.model_fields)


def _quote_description(model: _Model, inner: Loc) -> str:
    """Return the first sentence about a field in its model's docstring, in brackets, or ""."""
    holder = _model_at(model, inner[:-1])
    sentence = describe_field(holder, str(inner[-1])).removesuffix(".") if holder else ""
    if not sentence:
        return ""
    is_word = sentence[1:2].islower() or sentence[1:2] == " "
    return f" ({sentence[0].lower() if is_word else sentence[0]}{sentence[1:]})"


def own_fields_first(model: _Model) -> list[str]:
    """Return the names of a model's fields, its own before those of its base classes."""
    own = inspect.get_annotations(model)
    return sorted(model.model_fields, key=lambda name: name not in own)


def describe_field(model: _Model, name: str) -> str:
    """Return the first sentence about a field in its model's docstring; "" if there is none."""
    return re.split(r"(?<=\.)\s", document_field(model, name), maxsplit=1)[0]


def document_field(model: _Model, name: str) -> str:
    """Return the entry about a field in its model's docstring; "" if there is none.

    An entry is "NAME: Sentence." in Google's style, with or without the heading "Attributes:". For
    an inherited field, the docstrings of the base classes are searched too.
    """
    pattern = re.compile(
        rf"^( *)(?:\w+, )*{re.escape(name)}(?:, \w+)*(?: \([^()]*\))?: "  # NAME, OTHER (TYPE):
        r"(.+(?:\n\1 +\S.*)*)",  # and the lines that are indented below it
        re.M,
    )
    docstrings = (inspect.cleandoc(base.__dict__.get("__doc__") or "") for base in model.__mro__)
    entry = next(filter(None, map(pattern.search, docstrings)), None)
    return " ".join(entry[2].split()) if entry else ""
