"""The worker's side of the Ray engine, without Ray."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpupipe import config as configs
from gpupipe.engines.base import Job
from gpupipe.engines.ray.worker import BatchMaker
from gpupipe.sampling.sampler import Plan


@contextmanager
def maker(root: Path, **options: Any) -> Iterator[tuple[BatchMaker, Job]]:
    """A BatchMaker of a folder, and its job."""
    data = {"source": "folder", "root": root}
    config = configs.read({"data": data, "pipeline": ["decode"]}, device="cpu", **options)
    job = Job(config.source.index(), config.pipeline, config.loader, 1)
    with closing(BatchMaker(job, "cpu")) as batch_maker:
        yield batch_maker, job


def plan(*ids: int) -> Plan:
    """A plan of these rows."""
    return Plan(0, np.array(ids, np.int64), 0, False)


def make_batch(batch_maker: BatchMaker, plan: Plan) -> dict[str, torch.Tensor]:
    """The batch of a plan."""
    result = batch_maker.submit(plan).result()
    assert result is not None
    return result[1]


def broken(tmp_path: Path, faces: Path) -> Path:
    """A copy of the faces whose row 2 is cut off."""
    root = tmp_path / "faces"
    shutil.copytree(faces, root)
    file = sorted(root.rglob("*.jpg"))[2]
    file.write_bytes(file.read_bytes()[:1000])
    return root
