"""JSON Schemas of configs and of pipelines, for editors: completion, hover texts, red marks.

They are generated from the models of the settings, sources and steps, installed plugins included.
A schema accepts the forms that a field may have in YAML: short forms, ${...} and schedules. It does
not check rules that depend on the data or on other keys; `gpupipe check` does.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import pydantic
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from gpupipe.batch_stage.batch_step import BATCH_STEPS, BatchContainer
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.config.validation import TopLevel
from gpupipe.dataset import source
from gpupipe.decoders.chain import list_names
from gpupipe.pipeline.build import PipelineConfig, ViewConfig
from gpupipe.pipeline.container import Container
from gpupipe.pipeline.schedule_parsing import MAX_EPOCH
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.registry import AUTO, ENGINES
from gpupipe.schema import yaml_files
from gpupipe.schema.field_types import read_fill
from gpupipe.schema.validation_errors import describe_field

Kind = Literal["config", "pipeline"]
KINDS: tuple[Kind, ...] = ("config", "pipeline")
_DRAFT = "http://json-schema.org/draft-07/schema#"
_SCHEDULE = {"$ref": "#/$defs/schedule"}
_STEPS, _BATCH_STEPS = (
    {"type": "array", "items": {"$ref": f"#/$defs/{name}"}} for name in ("step", "batch_step")
)
Schema = dict[str, Any]
_INTERPOLATION: Schema = {"$ref": "#/$defs/interpolation"}
"""A text with ${...}, which may replace any value."""
_SHARED: Schema = {
    # Editors join the titles of alternatives that have no description of their own.
    "interpolation": {"type": "string", "pattern": r"\$\{", "description": "A value from ${...}."},
}
_UNUSED_KEYS = ("title", "ge")
"""Keys that pydantic adds, and no editor needs: its titles of models are names of classes."""
_KEPT = ("description", "default")
"""Keys that stay beside the `anyOf` of a value: editors show them."""


class _YamlForms(GenerateJsonSchema):
    """Widens the schema of a field to the short forms that its validator expands.

    If a validator runs before a list is checked, the schema also accepts one item, or fewer items:
    `size: 224`. It may accept more than the validator, but refuses nothing that gpupipe accepts.
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

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Describe each field by its sentence in the model's docstring."""
        described = super().model_schema(schema)
        described.pop("description", None)
        for name, value in described.get("properties", {}).items():
            if description := describe_field(schema["cls"], name):
                value["description"] = description
        return described

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore pydantic's warning about defaults that JSON cannot hold: they are left out."""


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
    number_forms: Sequence[Mapping[str, Any]] = (),
) -> Schema:
    """Return the schema of a model, and add those of the models inside it to `definitions`.

    Args:
        name: The prefix of the inner models' names under $defs: NAME.Model.
        model: The model.
        definitions: The schemas under $defs, changed in place.
        number_forms: Schemas of further values that may replace any number, besides ${...}.
    """
    schema = model.model_json_schema(
        ref_template=f"#/$defs/{name}.{{model}}", schema_generator=_YamlForms
    )
    for title, part in schema.pop("$defs", {}).items():
        definitions[f"{name}.{title}"] = _widen(part, number_forms) | {"title": title}
    return _widen(schema, number_forms) | {"title": name.rpartition(".")[2]}


def _widen(schema: Schema, number_forms: Sequence[Mapping[str, Any]]) -> Schema:
    """Return a schema that also accepts ${...} for any value, and `number_forms` for any number."""
    schema = {key: value for key, value in schema.items() if key not in _UNUSED_KEYS}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _widen(schema[key], number_forms)
    for key in ("anyOf", "oneOf", "prefixItems"):
        if key in schema:
            schema[key] = [_widen(part, number_forms) for part in schema[key]]
    if "properties" in schema:
        schema["properties"] = {k: _widen(v, number_forms) for k, v in schema["properties"].items()}
    others: list[Mapping[str, Any]] = []
    if schema.get("type") in ("number", "integer"):
        others = [*number_forms, _INTERPOLATION]
    elif schema.get("type") in ("boolean", "array") or "enum" in schema or "const" in schema:
        others = [_INTERPOLATION]
    if not others:
        return schema
    core = {key: value for key, value in schema.items() if key not in _KEPT}
    return _only(schema, {"anyOf": [core, *others]})


def make_schema(kind: Kind) -> Schema:
    """Return the JSON Schema (draft 7) for config files, or for pipeline files.

    Args:
        kind: "config", or "pipeline" for a file in `pipelines/`.
    """
    definitions: Schema = _SHARED | {"schedule": _schedule()}
    _add_steps(definitions, "step", STEPS, Container)
    pipeline = _pipeline(definitions)
    head = {"$schema": _DRAFT, "title": f"gpupipe {kind}"}
    if kind == "pipeline":
        return head | {"$defs": definitions} | pipeline
    _add_steps(definitions, "batch_step", BATCH_STEPS, BatchContainer)
    by_name = {
        "description": "A name, or a path of a file.",
        "anyOf": [
            {"enum": yaml_files.names("pipelines")},
            {"type": "string", "pattern": r"\.ya?ml$|\$\{", "description": "The path of a file."},
        ],
    }
    parts = {
        "data": _data(definitions),
        "pipeline": {"anyOf": [by_name, *pipeline["anyOf"]]},
        "batch": _BATCH_STEPS,
        "loader": _loader(definitions),
    }
    properties = {
        name: {"description": describe_field(TopLevel, name)} | part for name, part in parts.items()
    }
    return head | {"$defs": definitions} | _object(properties, "data", "pipeline")


def _object(properties: Schema, *required: str) -> Schema:
    plain = {"type": "object", "properties": properties, "additionalProperties": False}
    return plain | ({"required": list(required)} if required else {})


def _summary(model: type[Any]) -> str:
    return " ".join((inspect.getdoc(model) or "").partition("\n\n")[0].split())


def _schedule() -> Schema:
    number = {"anyOf": [{"type": "number"}, _INTERPOLATION]}
    epoch = {"type": "integer", "minimum": 0, "maximum": MAX_EPOCH}
    epochs = {"type": "array", "items": epoch, "minItems": 2, "maxItems": 2}
    line = {"from": number, "to": number, "epochs": epochs}
    then = {"anyOf": [number, _SCHEDULE]}
    jump = {"value": number, "until": epoch | {"minimum": 1}, "then": then}
    return {
        "title": "schedule",
        "description": "A number that changes from epoch to epoch.",
        "anyOf": [_object(line, *line), _object(jump, "until", "then")],
    }


def _find_all(registry: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the class of each entry of a registry.

    Skips broken plugins, which are reported if a config uses them.
    """
    for name in registry.names():
        with suppress(LookupError):
            yield name, registry.find(name)


def _add_steps(definitions: Schema, kind: str, registry: Any, container: type[Any]) -> None:
    """Add to `definitions` the schema of each step in `registry`, and of an item in a step list."""
    properties, plain = {}, {}
    for name, model in _find_all(registry):
        schema = describe_model(f"{kind}.{name}", model, definitions, [_SCHEDULE])
        fields = schema.setdefault("properties", {})
        fields["on"] = {
            "description": "The fields that the step works on; by default the first.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        }
        if issubclass(model, container):
            steps = {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/{kind}"}}
            fields["transforms"] = _only(fields["transforms"], steps)
        definitions[f"{kind}.{name}"] = schema
        reference = {"$ref": f"#/$defs/{kind}.{name}"}
        properties[name] = {"description": _summary(model), "allOf": [reference]}
        if required := schema.get("required"):
            # What an editor inserts: the step with its first parameter.
            properties[name]["defaultSnippets"] = [{"body": f"{{{required[0]}: $1}}"}]
        else:
            plain[name] = _summary(model)
            nothing_or_keys: Schema = {"anyOf": [reference, {"type": "null"}], "doNotSuggest": True}
            properties[name] = {"description": _summary(model), **nothing_or_keys}
    mapping = _object(properties) | {"title": "step", "minProperties": 1, "maxProperties": 1}
    mapping["propertyNames"] = {"allOf": _name_neighbours(list(properties))}
    definitions[f"{kind}_mapping"] = mapping
    by_name = {"type": "string", "enum": [*plain], "enumDescriptions": [*plain.values()]}
    item = {"$ref": f"#/$defs/{kind}_mapping"}
    forms = [by_name, item, {"type": "string", "pattern": r"\$\{"}]
    # An error in a mapping is then that of the mapping, and not that it is no string.
    by_type = {"if": {"type": "object"}, "then": item, "else": {"anyOf": forms}}
    definitions[kind] = {"title": "step"} | by_type


def _name_neighbours(names: Sequence[str]) -> list[Schema]:
    """Return rules that mark a name one letter off a known one with the known one.

    A letter is missing, wrong or too many, or two are swapped.
    """
    rules = []
    for name in names:
        forms = {name[:n] + ".?" + name[n + 1 :] for n in range(len(name))}
        forms |= {name[:n] + "." + name[n:] for n in range(len(name) + 1)}
        forms |= {
            name[:n] + name[n + 1] + name[n] + name[n + 2 :]
            for n in range(len(name) - 1)
            if name[n] != name[n + 1]
        }
        near = "|".join(sorted(forms))
        known = "|".join(other for other in names if re.fullmatch(near, other))
        found = {"pattern": f"^(?!(?:{known})$)(?:{near})$"}
        then = {"const": name, "errorMessage": f"Did you mean {name}?"}
        rules.append({"if": found, "then": then})
    return rules


def _pipeline(definitions: Schema) -> Schema:
    view = describe_model("view", ViewConfig, definitions)
    several = describe_model("pipeline", PipelineConfig, definitions)
    for schema in (view, several):
        schema["properties"]["steps"] |= _STEPS
    definitions["view"] = view
    views = {"type": "object", "additionalProperties": {"$ref": "#/$defs/view"}}
    several["properties"]["views"] = _only(several["properties"]["views"], views)
    return {"anyOf": [_STEPS, several]}


def _data(definitions: Schema) -> Schema:
    names, branches = [], []
    for name, model in _find_all(source.SOURCES):
        schema = describe_model(f"source.{name}", model, definitions)
        of_name = {"source": {"const": name, "description": _summary(model)}}
        schema["properties"] = of_name | schema.get("properties", {})
        definitions[f"source.{name}"] = schema
        names.append(name)
        is_source = {"properties": {"source": {"const": name}}, "required": ["source"]}
        branches.append({"if": is_source, "then": {"$ref": f"#/$defs/source.{name}"}})
    return {
        "type": "object",
        "properties": {"source": {"enum": names, "description": "What reads the data."}},
        "required": ["source"],
        "allOf": branches,
    }


def _loader(definitions: Schema) -> Schema:
    schema = describe_model("loader", LoaderConfig, definitions)
    properties = schema["properties"]
    engines = [AUTO, *ENGINES.names()]
    device = {
        "anyOf": [
            {"enum": ["auto", "cpu", "gpu", "gpu:0", "cuda", "cuda:0"]},
            {"type": "string", "pattern": r"^(gpu|cuda):\d+$|\$\{", "description": "A GPU."},
        ]
    }
    values: dict[str, Schema] = {
        "engine": {"anyOf": [{"enum": engines}, _INTERPOLATION]},
        "decoder": {"anyOf": [{"enum": list_names()}, _INTERPOLATION]},
        "device": device,
        "shard": {
            "anyOf": [{"const": "auto"}, {"$ref": "#/$defs/loader.Shard"}],
            "default": "auto",
        },
    }
    return schema | {
        "properties": properties | {k: _only(properties[k], v) for k, v in values.items()}
    }


def _only(schema: Schema, values: Schema) -> Schema:
    """Return the schema `values` with the description and the default of `schema` added."""
    return {key: schema[key] for key in _KEPT if key in schema} | values
