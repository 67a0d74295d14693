"""The remote engine: batches come from a data processing server, or from several in turn.

`connecting` connects to the servers, and checks that their configs agree and their shards differ.
`engine` receives batches through gpupipe.client, and its sampler keeps the position in their order.
`description` describes the served data set. The registry imports this folder by name. Start reading
in engine.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpupipe.protocol.peers import import_zmq
from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import BatchStream


def _load() -> type[BatchStream]:
    import_zmq()
    from gpupipe.engines.remote.engine import RemoteEngine

    return RemoteEngine


REGISTRATION = Registration(
    "the server",
    _load,
    required_settings={
        "server": "engine is remote, and no server is named: write 'server: tcp://HOST:PORT' "
        "beside it"
    },
)
