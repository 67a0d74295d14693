"""A leases of one epoch of 12 batches, and clients who say what clients say."""

from itertools import count
from typing import Any

from gpupipe.protocol import messages
from gpupipe.server.batch_leases import Leased
from gpupipe.server.options import ServerOptions
from gpupipe.server.sessions import Sessions

STEPS = 12
OPTIONS = ServerOptions(hwm=5, heartbeat_timeout=10, session_timeout=1000)
_numbers = count(1)


def hello(token: str, **fields: Any) -> messages.OpenSession:
    """What a client says first: one without shared memory, that holds and has consumed nothing.

    Args:
        token: Identifies the client.
        **fields: Other fields of OpenSession than by default.
    """
    defaults: dict[str, Any] = {
        "version": messages.VERSION,
        "number": next(_numbers),
        "name": f"client {token[:2]}",
        "rank": 0,
        "world_size": 1,
        "hwm": 5,
        "host_id": "",
        "pid": 1,
        "process_started": "",
        "wants_shared_memory": False,
        "codecs": [],
        "held": [],
        "consumed": [],
    }
    return messages.OpenSession(**defaults | {"token": token} | fields)


def joined(sessions: Sessions, number: int, rank: int = 0, world: int = 1) -> str:
    token = f"{number:032x}"
    sessions.open(hello(token, rank=rank, world_size=world), 0.0)
    sessions.start_iteration(token, messages.StartIteration(1, 0, 0, -1))
    return token


def lease_all(sessions: Sessions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while (
        (lane := sessions.batches.neediest())
        and (key := sessions.batches.take(lane))
        and isinstance(leased := sessions.batches.lease(key), Leased)
    ):
        found.setdefault(leased.client.token, []).append(key[1])
    return found


def consume_all(sessions: Sessions) -> dict[str, list[int]]:
    """What is leased and consumed until nobody gets anything any more."""
    found: dict[str, list[int]] = {}
    while leased := lease_all(sessions):
        for token, steps in leased.items():
            found.setdefault(token, []).extend(steps)
            sessions.batches.acknowledge(
                token, [(sessions.state.clients[token].pass_number or 0, step) for step in steps]
            )
    return found
