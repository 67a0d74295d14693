"""A ledger of one epoch of 12 batches, and clients who say what clients say."""

from __future__ import annotations

from itertools import count

from gpupipe.protocol import messages
from gpupipe.server.client_state import Rules
from gpupipe.server.leases import Leases

STEPS = 12
RULES = Rules(hwm=5, silent=10, lost=1000)
_numbers = count(1)


def hello(
    token: str, holding: list[messages.Key], done: list[messages.Key], rank: int = 0, world: int = 1
) -> messages.Hello:
    return messages.Hello(
        messages.VERSION,
        token,
        next(_numbers),
        f"client {token[:2]}",
        rank,
        world,
        5,
        "",
        1,
        "",
        False,
        [],
        holding,
        done,
    )


def joined(ledger: Leases, number: int, rank: int = 0, world: int = 1) -> str:
    token = f"{number:032x}"
    ledger.hello(hello(token, [], [], rank, world), 0.0)
    ledger.begin(token, messages.Begin(1, 0, 0, -1))
    return token


def lease_all(ledger: Leases) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while (lane := ledger.needy()) and (key := ledger.take(lane)) and (leased := ledger.lease(key)):
        found.setdefault(leased[0].token, []).append(key[1])
    return found


def consume_all(ledger: Leases) -> dict[str, list[int]]:
    """What is leased and consumed until nobody gets anything any more."""
    found: dict[str, list[int]] = {}
    while leased := lease_all(ledger):
        for token, steps in leased.items():
            found.setdefault(token, []).extend(steps)
            ledger.done(token, [(ledger.clients[token].run or 0, step) for step in steps])
    return found
