"""The remote engine: batches come from a data processing server, or from several in turn.

`connecting` connects to the servers, and checks that their configs agree and their shards differ.
`engine` takes the servers' batches in turn, and its sampler keeps the position in that order.
`description` describes the served data set.

A `connection` to one server has a thread and a socket. `session` and `reading` hold the state of
the connection, without sockets, threads or clocks: the client's half of the session, the pass over
an epoch that the client reads, the batches that it holds, and the batch that arrives in pieces.
`connection`, `session` and `reading` know only the protocol, not configs and pipelines.

The registry imports this folder by name. Start reading in engine.py, then in connection.py.
"""

from typing import TYPE_CHECKING

from gpupipe.protocol.peers import import_zmq
from gpupipe.runtime.registry import Registration

if TYPE_CHECKING:
    from gpupipe.engines.base import BatchStream


def _load() -> "type[BatchStream]":
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
