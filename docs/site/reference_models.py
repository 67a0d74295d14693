"""Writes the pages of every setting and of every step, from the models that check a config."""

import inspect
import re
from collections.abc import Container
from typing import Any

import pydantic
import step_pictures

_TRANSFORM = re.compile(r"\btorchvision\.transforms\.v2\.(\w+)")
_PAPER = re.compile(r"(?<!\()https://arxiv\.org/abs/([\d.]+\d)")
_SECTION = re.compile(r"\n(?:Attributes|Args|Examples|Raises|Returns):\n.*", re.S)


def write_settings() -> str:
    """Return the page of the keys of a config: data of each source, loader, batch, views."""
    from gpupipe.batch_stage.batch_step import BATCH_STEPS
    from gpupipe.config.loader_config import LoaderConfig
    from gpupipe.config.validation import TopLevel
    from gpupipe.dataset.source import SOURCES, Source
    from gpupipe.pipeline.build import PipelineConfig, ViewConfig

    parts = [
        "# Every setting",
        "What may stand in a config. [Configs and pipelines](../configuration.md) explains it with "
        "examples, and `gpupipe show NAME` prints the same about a source, a step or a setting.",
        "## The top level",
        _list_fields("config", TopLevel),
        "## data",
        "`source` names what reads the data. These keys are the same for every source:",
        _list_fields("data", Source),
    ]
    for name in SOURCES.names():
        parts += [*_describe(f"data, source: {name}", SOURCES.find(name), set(Source.model_fields))]
    parts += ["## pipeline", "A list of [steps](steps.md), the name of a pipeline, or:"]
    parts += [
        _list_fields("pipeline", PipelineConfig),
        "Each of the `views`:",
        _list_fields("views", ViewConfig),
    ]
    parts += ["## loader", _list_fields("loader", LoaderConfig), "## batch"]
    parts.append("[Mix batches](../batch.md) explains these steps.")
    for name in sorted(BATCH_STEPS.builtin_names):
        parts += [*_describe(f"batch: {name}", BATCH_STEPS.find(name), set())]
    return "\n\n".join(filter(None, parts)) + "\n"


def write_steps() -> str:
    """Return the page of the steps."""
    from gpupipe.bench.gallery import write_title
    from gpupipe.pipeline.step_registry import STEPS

    drawn = set(step_pictures.list_drawn())
    parts = [
        "# Every step",
        "Steps are the items of `pipeline:`, with torchvision's names, defaults and meaning. On "
        "the left of a picture is the original. Beside it are eight draws, or the one result of a "
        "step that draws nothing. `gpupipe gallery` makes the pictures, from the YAML above each.",
    ]
    for name in sorted(STEPS.builtin_names):
        model = STEPS.find(name)
        heading, *described = _describe(name, model, set(), level=2)
        parts.append(heading)
        if name in drawn:
            example = write_title(name, dict(model.example))
            parts.append(f"```yaml\n- {example}\n```")
            parts.append(f"![{name} on a drawn face](steps/{name}.jpg){{: .step loading=lazy }}")
        parts += described
    return "\n\n".join(filter(None, parts)) + "\n"


def _describe(title: str, model: type[Any], left_out: set[str], level: int = 3) -> list[str]:
    fields = _list_fields(title.rpartition(" ")[2], model, left_out)
    return [f"{'#' * level} {title}", _summarize(model), fields]


def _summarize(model: type[Any]) -> str:
    """Return the docstring of a class without its sections."""
    text = _SECTION.sub("", "\n" + (inspect.getdoc(model) or "")).strip()
    text = text.replace("::\n\n    ", ":\n\n    ")
    return _PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", _TRANSFORM.sub(_link, text))


def _link(transform: re.Match[str]) -> str:
    name = transform[1]
    page = f"https://docs.pytorch.org/vision/stable/generated/torchvision.transforms.v2.{name}.html"
    return f"torchvision's [{name}]({page})"


def _list_fields(
    path: str, model: type[pydantic.BaseModel], left_out: Container[str] = frozenset()
) -> str:
    """Return the fields of a model, with all that its docstring says about them.

    Args:
        path: What comes before the anchors: `path.field`.
        model: The model.
        left_out: The names of fields that are left out.
    """
    from gpupipe.cli.parameters import describe_parameters
    from gpupipe.schema.validation_errors import document_field

    parts = []
    for p in describe_parameters(model):
        if p.name in left_out:
            continue
        meaning = document_field(model, p.name)
        default = "required" if p.is_required else f"default `{p.default}`"
        has_default = not p.is_required and re.search(r"\bdefault\b", meaning)
        words = p.type_text if has_default or p.default[:1] == "{" else f"{p.type_text}; {default}"
        parts.append(f"`{p.name}`{{ #{path}.{p.name} }} {words}\n:   {meaning}")
    return "\n\n".join(parts)
