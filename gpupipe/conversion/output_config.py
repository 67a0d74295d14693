"""The config that reads converted shards: that of the source, with other data."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpupipe.config import Config
from gpupipe.conversion.plan import StoragePlan
from gpupipe.pipeline.build import build_pipeline, find_pipeline
from gpupipe.schema.document import Document

_WIDTH = 96
_KEPT = ("max_pixels", "cache_decoded")
"""Options of `data` that every source has, and that do not depend on the container."""


def make_config(config: Config, plan: StoragePlan, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the shards, as plain YAML types.

    Args:
        config: The config of the source.
        plan: How samples are stored.
        data: The options of the source that reads the shards.

    Raises:
        ConfigError: The steps cannot work on arrays in place of image files.
    """
    assert config.document is not None
    old: dict[str, Any] = copy.deepcopy(config.document.data)
    source = {"tar": "webdataset", "parquet": "parquet"}[plan.options.format]
    kept = {name: old["data"][name] for name in _KEPT if name in old["data"]}
    made: dict[str, Any] = {"data": {"source": source, **data, **kept}}
    folder = config.document.folder
    steps = old["pipeline"]
    if isinstance(steps, str):  # a name may be found beside the old config alone
        steps = copy.deepcopy(find_pipeline(steps, folder).data)
    if plan.options.raw:
        steps = _leave_out_decode(steps)
        _check_steps(config, plan, steps)
    made["pipeline"] = steps
    return made | {name: old[name] for name in ("batch", "loader") if name in old}


def write_text(made: Mapping[str, Any], comment: str) -> str:
    """Return a config as YAML, with a comment at its beginning."""
    text = yaml.safe_dump(dict(made), sort_keys=False, width=_WIDTH, allow_unicode=True)
    return f"# {comment}\n{text}"


def _leave_out_decode(steps: Any) -> Any:
    """Return steps without `decode`."""
    if isinstance(steps, dict):  # steps and views
        return steps | {"steps": _leave_out_decode(steps.get("steps") or [])}
    return [step for step in steps if step != "decode" and not _is_decode(step)]


def _is_decode(step: Any) -> bool:
    return isinstance(step, dict) and next(iter(step), "") == "decode"


def _check_steps(config: Config, plan: StoragePlan, steps: Any) -> None:
    """Raise ConfigError if steps cannot work on arrays."""
    fields = dict(config.source.field_specs()) | {field.name: field.spec for field in plan.fields}
    document = Document(f"{config.name}, as --raw stores it", {"pipeline": steps})
    build_pipeline("inline", document, ("pipeline",), fields, config.source.annotation_specs())


def name_config(config: Config, folder: Path) -> Path:
    """Return the path of the config of the shards in `folder`: it has the name of the old one."""
    return folder / f"{config.name}.yaml"
