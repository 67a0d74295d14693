"""One way to make a loader in tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gpupipe

ENGINES: list[dict[str, Any]] = [
    {"engine": "dali"},
    {"engine": "cpu"},
    {"engine": "dataloader", "workers": 0},
]
ENGINES_AND_BATCHES: list[dict[str, Any]] = [
    {"batch_size": 60, "threads": 2},
    {"batch_size": 7, "shuffle": False, "prefetch": 5},
    {"engine": "dali", "batch_size": 13},
    {"engine": "dataloader", "batch_size": 11, "workers": 2},
]
"""Settings of loader that change no sample; the engine is cpu unless they name one."""


class Load(Protocol):
    """`load` with another pipeline and other settings by default."""

    def __call__(
        self, root: Path | str, pipeline: str | Sequence[Any] = ..., **options: Any
    ) -> gpupipe.Loader: ...


def load(
    root: Path | str | None,
    pipeline: str | Sequence[Any] = ("decode",),
    *,
    data: Mapping[str, Any] | None = None,
    **options: Any,
) -> gpupipe.Loader:
    """Load a folder of images; on the CPU and with ids, unless `options` say otherwise.

    Args:
        root: The folder of the images; None if `data` says it all.
        pipeline: The steps, or the name of a shipped pipeline.
        data: More keys of `data:`.
        **options: Settings of `loader:`.
    """
    folder = {} if root is None else {"source": "folder", "root": root}
    config = {
        "data": {**folder, **(data or {})},
        "pipeline": pipeline if isinstance(pipeline, str) else list(pipeline),
    }
    return gpupipe.load(config, **{"device": "cpu", "ids": True, **options})


def loading(pipeline: str | Sequence[Any] = ("decode",), **defaults: Any) -> Load:
    """Return `load` with this pipeline and these options as defaults."""

    def load_with_defaults(
        root: Path | str, pipeline: str | Sequence[Any] = pipeline, **options: Any
    ) -> gpupipe.Loader:
        return load(root, pipeline, **{**defaults, **options})

    return load_with_defaults
