"""Many pipelines on one data set in one loader, each as a view: one graph of DALI in place of a
hundred.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import gpupipe
from gpupipe import config
from helpers.arrays import ENGINES


def deliver_each(
    data: Mapping[str, Any],
    pipelines: Mapping[str, Sequence[Any]],
    engine: str,
    *,
    before: Sequence[Any] = (),
    **options: Any,
) -> dict[str, torch.Tensor | str]:
    """Return by name what an engine delivers of the first sample, or how the config is refused.

    Args:
        data: The YAML's `data`.
        pipelines: The steps by name. Names are identifiers.
        engine: A key of ENGINES.
        before: Steps that run before each of them.
        **options: Settings of `loader:`.
    """
    settings = {"device": "cpu", "batch_size": 1, "threads": 1, **ENGINES[engine], **options}
    checked, refused = read_each(data, pipelines, before, **settings)
    if checked is None:
        return {**refused}
    with gpupipe.load(checked) as loader:
        batch = next(iter(loader))
    return refused | {name: batch[name][0] for name in pipelines if name not in refused}


def read_each(
    data: Mapping[str, Any],
    pipelines: Mapping[str, Sequence[Any]],
    before: Sequence[Any],
    **settings: Any,
) -> tuple[config.Config | None, dict[str, str]]:
    """Return a config with those pipelines as views that it may have, None if it may have none; and
    by name why it may not have the others: `STEP: message`.
    """
    views = {name: {"steps": list(steps)} for name, steps in pipelines.items()}
    try:
        return _read(data, views, before, settings), {}
    except gpupipe.ConfigError as e:
        located = [
            re.fullmatch(r"config: pipeline\.views\.(\w+)\.steps\.(\d+.*)", str(problem), re.S)
            for problem in e.problems
        ]
        assert all(located), str(e)
        refused = {match[1]: match[2] for match in located if match}
    views = {name: view for name, view in views.items() if name not in refused}
    return _read(data, views, before, settings) if views else None, refused


def _read(
    data: Mapping[str, Any], views: Any, before: Sequence[Any], settings: Any
) -> config.Config:
    pipeline = {"steps": list(before), "views": views}
    return config.read({"data": dict(data), "pipeline": pipeline}, **settings)
