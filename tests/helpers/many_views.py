"""Many pipelines on one data set in one loader, each as a view: one graph of DALI in place of a
hundred.
"""

from __future__ import annotations

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
    refused: dict[str, str] = find_refused(data, pipelines, before, **settings)
    views = {n: {"steps": list(steps)} for n, steps in pipelines.items() if n not in refused}
    if not views:
        return {**refused}
    written = {"data": dict(data), "pipeline": {"steps": list(before), "views": views}}
    with gpupipe.load(written, **settings) as loader:
        batch = next(iter(loader))
    return refused | {name: batch[name][0] for name in views}


def find_refused(
    data: Mapping[str, Any],
    pipelines: Mapping[str, Sequence[Any]],
    before: Sequence[Any],
    **settings: Any,
) -> dict[str, str]:
    """Return the messages of the pipelines that a config may not have, by name: `STEP: message`."""
    views = {name: {"steps": list(steps)} for name, steps in pipelines.items()}
    written = {"data": dict(data), "pipeline": {"steps": list(before), "views": views}}
    try:
        config.read(written, **settings)
    except gpupipe.ConfigError as e:
        located = [
            re.fullmatch(r"config: pipeline\.views\.(\w+)\.steps\.(\d+.*)", str(problem), re.S)
            for problem in e.problems
        ]
        assert all(located), str(e)
        return {match[1]: match[2] for match in located if match}
    return {}
