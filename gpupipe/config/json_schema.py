"""JSON Schemas of configs and of pipelines, for editors: completion, hover texts, red marks.

They are made from the models of the settings, sources and steps, those of installed plugins too.
What depends on the data, or on other keys, a schema does not check: `gpupipe check` does.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

from gpupipe.batch_stage.batch_step import BATCH_STEPS, BatchContainer
from gpupipe.config.json_schema_types import INTERPOLATION, Schema, describe_model
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.config.validation import TopLevel
from gpupipe.dataset import source
from gpupipe.decoders.chain import list_names
from gpupipe.pipeline.build import PipelineConfig, ViewConfig
from gpupipe.pipeline.container import Container
from gpupipe.pipeline.schedule_parsing import MAX_EPOCH
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.registry import AUTO, ENGINES
from gpupipe.schema import builtin_configs
from gpupipe.schema.validation_errors import describe_field

Kind = Literal["config", "pipeline"]
KINDS: tuple[Kind, ...] = ("config", "pipeline")
_DRAFT = "http://json-schema.org/draft-07/schema#"
_SCHEDULE = {"$ref": "#/$defs/schedule"}
_STEPS, _BATCH_STEPS = (
    {"type": "array", "items": {"$ref": f"#/$defs/{name}"}} for name in ("step", "batch_step")
)


def make_schema(kind: Kind) -> Schema:
    """Return the JSON Schema (draft 7) of a kind of file.

    Args:
        kind: "config", or "pipeline" for a file in `pipelines/`.
    """
    definitions: Schema = {"schedule": _schedule()}
    _add_steps(definitions, "step", STEPS, Container)
    pipeline = _pipeline(definitions)
    head = {"$schema": _DRAFT, "title": f"gpupipe {kind}"}
    if kind == "pipeline":
        return head | {"$defs": definitions} | pipeline
    _add_steps(definitions, "batch_step", BATCH_STEPS, BatchContainer)
    parts = {
        "data": _data(definitions),
        "pipeline": {"anyOf": [_name_of_pipeline(), *pipeline["anyOf"]]},
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
    number = {"anyOf": [{"type": "number"}, INTERPOLATION]}
    epoch = {"type": "integer", "minimum": 0, "maximum": MAX_EPOCH}
    epochs = {"type": "array", "items": epoch, "minItems": 2, "maxItems": 2}
    line = {"from": number, "to": number, "epochs": epochs}
    then = {"anyOf": [number, _SCHEDULE]}
    jump = {"value": number, "until": epoch | {"minimum": 1}, "then": then}
    return {
        "description": "A number that changes from epoch to epoch.",
        "anyOf": [_object(line, *line), _object(jump, "until", "then")],
    }


def _add_steps(definitions: Schema, kind: str, registry: Any, container: type[Any]) -> None:
    """Add the schemas of all steps of a kind, and of an item of a list of them."""
    properties, plain = {}, []
    for name in registry.names():
        try:
            model = registry.find(name)
        except LookupError:
            continue  # A broken plugin: gpupipe names it where a config uses the step.
        schema = describe_model(f"{kind}.{name}", model, definitions, [_SCHEDULE])
        fields = schema.setdefault("properties", {})
        fields["on"] = {
            "description": "The fields that the step works on; by default the first.",
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        }
        if issubclass(model, container):
            steps = {"$ref": f"#/$defs/{kind}"}
            fields["transforms"] = fields["transforms"] | {"type": "array", "minItems": 1}
            for key in ("anyOf", "items"):
                fields["transforms"].pop(key, None)
            fields["transforms"]["items"] = steps
        definitions[f"{kind}.{name}"] = schema
        summary = _summary(model)
        reference: Schema = {"$ref": f"#/$defs/{kind}.{name}"}
        if not schema.get("required"):
            plain.append(name)
            reference = {"anyOf": [reference, {"type": "null"}]}
        else:
            reference = {"allOf": [reference]}
        properties[name] = {"description": summary} | reference
    item = _object(properties) | {"minProperties": 1, "maxProperties": 1}
    definitions[kind] = {"anyOf": [{"type": "string", "enum": plain}, item, INTERPOLATION]}


def _pipeline(definitions: Schema) -> Schema:
    view = describe_model("view", ViewConfig, definitions)
    view["properties"]["steps"] = view["properties"]["steps"] | _STEPS
    definitions["view"] = view
    several = describe_model("pipeline", PipelineConfig, definitions)
    several["properties"]["steps"] = several["properties"]["steps"] | _STEPS
    views = {"type": "object", "additionalProperties": {"$ref": "#/$defs/view"}}
    several["properties"]["views"] = {
        "description": describe_field(PipelineConfig, "views")
    } | views
    return {"anyOf": [_STEPS, several]}


def _name_of_pipeline() -> Schema:
    names = builtin_configs.names("pipelines")
    return {"type": "string", "examples": names, "description": "A name, or a path of a file."}


def _data(definitions: Schema) -> Schema:
    names, branches = [], []
    for name in source.SOURCES.names():
        try:
            model = source.SOURCES.find(name)
        except LookupError:
            continue  # As in _add_steps.
        schema = describe_model(f"source.{name}", model, definitions)
        schema["properties"] = {
            "source": {"const": name, "description": _summary(model)}
        } | schema.get("properties", {})
        definitions[f"source.{name}"] = schema
        names.append(name)
        branches.append(
            {
                "if": {"properties": {"source": {"const": name}}, "required": ["source"]},
                "then": {"$ref": f"#/$defs/source.{name}"},
            }
        )
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
    properties["engine"] = _only(properties["engine"], {"enum": engines})
    properties["decoder"] = _only(properties["decoder"], {"enum": list_names()})
    properties["device"] = _only(
        properties["device"], {"pattern": r"^(auto|cpu|(gpu|cuda)(:\d+)?)$|\$\{", "type": "string"}
    )
    shard = {"anyOf": [{"const": "auto"}, {"$ref": "#/$defs/loader.Shard"}]}
    properties["shard"] = _only(properties["shard"], shard) | {"default": "auto"}
    return schema


def _only(schema: Schema, values: Schema) -> Schema:
    """Return a schema of other values with the description and the default of `schema`."""
    kept = {key: schema[key] for key in ("description", "default") if key in schema}
    return kept | (values if "enum" not in values else {"anyOf": [values, INTERPOLATION]})
