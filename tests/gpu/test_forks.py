"""A GPU behind a fork."""

from __future__ import annotations

from pathlib import Path

from forks import in_fork, said_by

import gpupipe


def test_a_gpu_is_refused_behind_a_fork(faces: Path) -> None:
    config = {
        "data": {"source": "folder", "root": faces},
        "pipeline": ["decode"],
        "loader": {"device": "gpu", "batch_size": 4},
    }
    with gpupipe.load(config) as loader:
        next(iter(loader))
        assert "CUDA was in use before this process was forked" in in_fork(
            lambda: said_by(lambda: gpupipe.load(config))
        )
