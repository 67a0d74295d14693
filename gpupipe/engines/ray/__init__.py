"""The Ray engine: workers of a Ray cluster make the batches, in the order of the plans.

`engine` joins the parts. `cluster` connects to Ray, and `pool` starts a `pool_worker` with an
`actor` for each worker, and replaces those that die. `dispatcher` gives each plan to a worker, and
`delivery` finishes the answers in the order of the plans. A `worker` feeds its plans to an engine
of its own through a `plan_stream`; `messages` are what goes between the two sides, and `arrays`
turns tensors into NumPy arrays and back. `capacity` checks that batches fit Ray's object store, and
`autoscaling` follows how long the trainer waits. `sharing` says what the workers share, `versions`
whether they fit together, and `errors` words what goes wrong. The registry imports this folder by
name. Start reading in engine.py.
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
