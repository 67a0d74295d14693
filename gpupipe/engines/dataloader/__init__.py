"""The DataLoader engine: runs pipelines in worker processes of torch.utils.data.DataLoader.

`engine` runs in the parent process. `workers` holds torch's DataLoader, and `samples` the Dataset
that makes batches in the workers. `worker_death` explains why a worker ended, and finds the
samples that crash a process.
Only the registry imports this folder, by name. Start reading in samples.py.
"""

from typing import TYPE_CHECKING

from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> "type[Engine]":
    from gpupipe.engines.dataloader.engine import DataLoaderEngine

    return DataLoaderEngine


REGISTRATION = Registration("the DataLoader", _load, auto_priority={"gpu": 10, "cpu": 10})
