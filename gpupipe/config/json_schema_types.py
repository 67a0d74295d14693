"""JSON Schema of one settings model, as YAML writes its fields: short forms, ${...}, schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from gpupipe.schema.field_types import read_fill
from gpupipe.schema.validation_errors import describe_field

Schema = dict[str, Any]
INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
"""A text with ${...}, which may stand for any value."""
_NO_WORDS = ("title", "ge")
"""What pydantic adds and JSON Schema does not use."""
_KEPT = ("description", "default")
"""What stays beside the alternatives of a value: editors show it."""


class _YamlForms(GenerateJsonSchema):
    """Widens the schema of a field to the short forms that its validator expands.

    A validator before a list takes a single item too, or fewer of them: `size: 224`. It may take
    less than that, so the schema refuses nothing that gpupipe takes.
    """

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        return _add_short_forms(super().function_before_schema(schema))

    def function_wrap_schema(self, schema: Any) -> JsonSchemaValue:
        wide = _add_short_forms(super().function_wrap_schema(schema))
        if schema["function"]["function"] is not read_fill:
            return wide
        by_kind = {"type": "object", "additionalProperties": False}
        kinds = {"properties": {"image": wide, "mask": wide}, "required": ["image", "mask"]}
        return {"anyOf": [wide, by_kind | kinds]}

    def is_instance_schema(self, schema: Any) -> JsonSchemaValue:
        return {}

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing of defaults that JSON cannot hold: they are left out."""


def _add_short_forms(schema: Schema) -> Schema:
    if schema.get("type") != "array":
        return schema
    items = schema.get("prefixItems", [schema.get("items", {})])
    unequal = [item for n, item in enumerate(items) if item not in items[:n]]
    item = unequal[0] if len(unequal) == 1 else {"anyOf": unequal}
    several: Schema = {"type": "array", "items": item, "minItems": 1}
    if "maxItems" in schema:
        several["maxItems"] = schema["maxItems"]
    return {"anyOf": [item, several]}


def describe_model(
    name: str,
    model: type[pydantic.BaseModel],
    definitions: Schema,
    numbers: Sequence[Mapping[str, Any]] = (),
) -> Schema:
    """Return the schema of a model, and add those of the models inside it to `definitions`.

    Args:
        name: What the schemas of inner models are called by: NAME.Model.
        model: The model.
        definitions: The schemas under $defs.
        numbers: What may stand in place of any number, besides ${...}.
    """
    schema = model.model_json_schema(
        ref_template=f"#/$defs/{name}.{{model}}", schema_generator=_YamlForms
    )
    inner = schema.pop("$defs", {})
    nested = {kind.__name__: kind for kind in _list_models(model)}
    for title, part in inner.items():
        definitions[f"{name}.{title}"] = _finish(part, nested.get(title), numbers)
    return _finish(schema, model, numbers)


def _list_models(model: type[pydantic.BaseModel]) -> list[type[pydantic.BaseModel]]:
    """Return the models in the annotations of a model, at any depth."""
    found: list[type[pydantic.BaseModel]] = []
    waiting: list[Any] = [info.annotation for info in model.model_fields.values()]
    while waiting:
        part = waiting.pop()
        if isinstance(part, type) and issubclass(part, pydantic.BaseModel) and part not in found:
            found.append(part)
            waiting += [info.annotation for info in part.model_fields.values()]
        waiting += getattr(part, "__args__", ())
    return found


def _finish(
    schema: Schema, model: type[pydantic.BaseModel] | None, numbers: Sequence[Mapping[str, Any]]
) -> Schema:
    """Widen the values of an object, and describe them from the model's docstring."""
    schema.pop("title", None)
    schema.pop("description", None)
    properties = {}
    for key, value in schema.get("properties", {}).items():
        wide = _widen(value, numbers)
        words = describe_field(model, key) if model is not None else ""
        properties[key] = wide | ({"description": words} if words else {})
    return schema | ({"properties": properties} if properties else {})


def _widen(schema: Schema, numbers: Sequence[Mapping[str, Any]]) -> Schema:
    """Let ${...} stand for a value, and `numbers` for a number, at any depth."""
    schema = {key: value for key, value in schema.items() if key not in _NO_WORDS}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _widen(schema[key], numbers)
    for key in ("anyOf", "oneOf", "prefixItems"):
        if key in schema:
            schema[key] = [_widen(part, numbers) for part in schema[key]]
    if "properties" in schema:
        schema["properties"] = {k: _widen(v, numbers) for k, v in schema["properties"].items()}
    others: list[Mapping[str, Any]] = []
    if schema.get("type") in ("number", "integer"):
        others = [*numbers, INTERPOLATION]
    elif schema.get("type") in ("boolean", "array") or "enum" in schema or "const" in schema:
        others = [INTERPOLATION]
    if not others:
        return schema
    core = {key: value for key, value in schema.items() if key not in _KEPT}
    return {key: schema[key] for key in _KEPT if key in schema} | {"anyOf": [core, *others]}
