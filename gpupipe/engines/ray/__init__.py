"""The Ray engine: workers of a Ray cluster make the batches, in the order of the plans.

A plan holds the ids of the samples of one batch.

In the trainer's process, `engine` creates and connects the other parts. `cluster` connects to Ray.
`pool` starts the workers, and replaces those that die. `dispatcher` sends each plan to a worker.
`engine` finishes the batches in the order of the plans. `status` writes the file for
`gpupipe status ray`.

In a worker's process, `actor` receives the plans, and `worker` makes their batches and packs them
for the object store.

The registry of engines imports this folder by name. Start reading in engine.py.
"""

from typing import TYPE_CHECKING

from gpupipe.errors import EngineError
from gpupipe.runtime.installation import require_extra
from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> "type[Engine]":
    require_extra("ray", ("ray",), "engine: ray", EngineError)
    from gpupipe.engines.ray.engine import RayEngine

    return RayEngine


REGISTRATION = Registration("Ray", _load)
