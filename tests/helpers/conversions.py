"""Configs of photographs, and their conversion to shards."""

import json
from pathlib import Path
from typing import Any

from gpupipe import config as configs
from gpupipe.conversion.convert import ConversionResult, convert
from gpupipe.conversion.plan import Options
from gpupipe.runtime.progress import ignore_progress

COUNT = 24
STEPS = ["decode", {"random_resized_crop": {"size": 32}}, "random_horizontal_flip"]


def write_config(folder: Path, data: dict[str, Any], steps: Any = None, **loader: Any) -> Path:
    """Write a config for `data` as JSON, and return its path."""
    path = folder / "train.json"
    settings = {"batch_size": 5, "device": "cpu", "ids": True} | loader
    content = {"data": data, "pipeline": STEPS if steps is None else steps, "loader": settings}
    path.write_text(json.dumps(content))
    return path


def run(config: Path, out: Path, **options: Any) -> ConversionResult:
    """Convert to about five shards, unless `options` say otherwise."""
    settings = Options(**{"shard_bytes": 400_000, **options})
    return convert(configs.read(config), out, settings, ignore_progress)
