"""Describes each field of a settings model: its type as text, its default and its meaning."""

import inspect
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

from gpupipe.errors import shown
from gpupipe.schema.number_array import NumberArray
from gpupipe.schema.validation_errors import describe_field, document_field, own_fields_first

_CONTINUED = re.compile(r"(?<!\n)\n(?:  (?=\S)|(?=[^\s-]))")
"""The break before a line of a docstring that continues a paragraph, or an item of a list."""
_TYPES: dict[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    NumberArray: "numbers or the path of an .npy file",
    pydantic.ByteSize: "bytes, such as 64MB",
    Any: "any value",
}
_PLURALS = {"whole number": "whole numbers", "number": "numbers", "path": "paths", "text": "texts"}
_NONES = (None, type(None))
"""Annotations of None. Type texts leave them out: the default "none" already shows them."""
_HUGE = 2**53
"""Bounds from this size on are limits of the hardware, and are not shown."""
_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
_NAMED_ITEMS = re.compile(r"\[[a-z]+(?:, [a-z]+)+\]")
"""The names of the numbers of a list in a docstring, such as [min, max]."""
_EXAMPLES = {"whole number": (1, 2, 50), "number": (0.5, 0.1, 1.5, 1, 50)}


@dataclass(frozen=True)
class Parameter:
    """A field of a settings model.

    Attributes:
        name: Its name in YAML.
        type_text: Its type, such as "whole number, at least 1" or "number or [min, max]".
        default: Its default as YAML shows it; "" if it has none.
        meaning: The first sentence of its entry in the model's docstring.
        model: The pydantic model of its nested fields; None if it has no such fields.
    """

    name: str
    type_text: str
    default: str
    meaning: str
    model: type[pydantic.BaseModel] | None = None

    @property
    def is_required(self) -> bool:
        """Whether a config must contain the field, since it has no default."""
        return not self.default


def describe_parameters(model: type[pydantic.BaseModel]) -> list[Parameter]:
    """Return the fields of a model, its own before inherited ones."""
    return [
        Parameter(
            name,
            _describe_forms(model, name),
            "" if info.is_required() else _show(info.get_default(call_default_factory=True)),
            describe_field(model, name),
            _find_model(info.annotation),
        )
        for name in own_fields_first(model)
        if not (info := model.model_fields[name]).exclude
    ]


def _describe_forms(model: type[pydantic.BaseModel], name: str) -> str:
    """Return the type of a field as text: a list of numbers with their names and its short form."""
    info = model.model_fields[name]
    text = _describe_type(info.annotation, info.metadata)
    listed = re.match(r"list of (\d+ )?((?:whole )?number)s", text)
    if listed is None:
        return text
    for names in _NAMED_ITEMS.findall(document_field(model, name)):
        if listed[1] and names.count(",") + 1 == int(listed[1]):
            text = f"{names}{text[listed.end() :]}"
            break
    return f"{listed[2]} or {text}" if _takes_one(model, name, listed[2]) else text


def _takes_one(model: type[pydantic.BaseModel], name: str, kind: str) -> bool:
    """Return whether a list may be written as one number, which the field's validator spreads."""
    others = dict(getattr(model, "example", {}))
    for example in _EXAMPLES[kind]:
        try:
            model.model_validate(others | {name: example})
        except pydantic.ValidationError as e:
            if any(error["loc"][:1] in ((), (name,)) for error in e.errors()):
                continue
        return True
    return False


def summarize(model: type[Any]) -> str:
    """Return a class's docstring before its first section, with one line for each paragraph."""
    lines = []
    for line in (inspect.getdoc(model) or "").splitlines():
        if line.rstrip() in ("Attributes:", "Args:", "Examples:", "Raises:"):
            break
        lines.append(line)
    return _CONTINUED.sub(" ", "\n".join(lines).strip())


def _show(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, Enum):
        default = default.value
    if isinstance(default, pydantic.BaseModel):
        default = default.model_dump(mode="json")
    if isinstance(default, str) and default:
        return default
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    if isinstance(default, list | tuple):
        return f"[{', '.join(map(_show, default))}]"
    if isinstance(default, dict):
        return f"{{{', '.join(f'{key}: {_show(value)}' for key, value in default.items())}}}"
    return shown(default)


def _describe_type(annotation: Any, bounds: Sequence[Any] = ()) -> str:
    """Return a type and its bounds as text. `bounds` has those that are not in `annotation`."""
    while get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        bounds = [*metadata, *bounds]
    text = _describe_plain(annotation)
    limits = _describe_bounds(bounds)
    return f"{text}, {limits}" if limits else text


def _describe_plain(annotation: Any) -> str:
    """Describe the type of an annotation that has no metadata."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _join([_show(a) for a in arguments])
    if origin in (Union, types.UnionType):
        return _join(list(dict.fromkeys(_describe_type(a) for a in arguments if a not in _NONES)))
    if isinstance(origin, type) and issubclass(origin, (list, tuple, frozenset, set)):
        has_length = issubclass(origin, tuple) and ... not in arguments
        return _describe_list(arguments[0], f"{len(arguments)} " if has_length else "")
    if origin is not None or _find_model(annotation) is not None:
        return "mapping"
    return _TYPES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _describe_list(part: Any, count: str) -> str:
    model = _find_model(part)
    if model is not None:
        return "list of steps" if "step" in model.model_fields else "list of mappings"
    text = _describe_type(part)
    word, comma, limits = text.partition(", ")
    plural = _PLURALS.get(word)
    if plural is None:
        return "list" if text == "any value" else f"list of {count}values, each {text}"
    return f"list of {count}{plural}{f', each {limits}' if comma else ''}"


def _describe_bounds(metadata: Sequence[Any]) -> str:
    """Return limits of a number as text, such as "0 to 1" or "at least 1"."""
    bounds: dict[str, Any] = {}
    for part in metadata:
        for constraint in (part, *getattr(part, "metadata", ())):
            for name in _BOUNDS:
                bound = getattr(constraint, name, None)
                if bound is not None and abs(bound) < _HUGE:
                    bounds[name] = bound
    if {"ge", "le"} <= bounds.keys():
        return f"{bounds['ge']:,} to {bounds['le']:,}"
    return " and ".join(
        _BOUNDS[name].format(f"{bounds[name]:,}") for name in _BOUNDS if name in bounds
    )


def _join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _find_model(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Return the first pydantic model in an annotation or its arguments; None without one."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    models = map(_find_model, get_args(annotation))
    return next((model for model in models if model is not None), None)
