"""The Ray engine: workers of a Ray cluster make the batches, in the order of the plans.

The trainer's side: `engine` joins the parts. `cluster` connects to Ray. `pool` starts the workers,
and replaces those that die. `dispatcher` gives each plan to a worker, and `delivery` finishes the
answers in the order of the plans. `status` writes the file for `gpupipe status ray`.

The worker's side: `actor` runs in its process, and makes batches with the engine of its `worker`.
`messages` are what it answers.

The registry imports this folder by name. Start reading in engine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.errors import EngineError
from gpupipe.runtime.installation import require_extra
from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import Engine


def _load() -> type[Engine]:
    require_extra("ray", ("ray",), "engine: ray", EngineError)
    from gpupipe.engines.ray.engine import RayEngine

    return RayEngine


REGISTRATION = Registration("Ray", _load)
