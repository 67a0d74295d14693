"""What a server knows of a client: what it does, and how many batches it may be sent."""

from __future__ import annotations

import pytest

from gpupipe.server.client_state import Client, Idle, Reading, Reconnecting, SessionStarted, Waiting
from gpupipe.server.epoch_pass import Partition


@pytest.fixture
def client() -> Client:
    token = "1" * 32
    session = SessionStarted(token, "0", "client", "", 1, "")
    return Client(session, Partition("0", 0), hwm=3)


def test_only_who_reads_a_pass_has_credits(client: Client) -> None:
    assert client.credits == 0
    client.enter(4)
    assert (client.pass_number, client.credits) == (4, 3)
    client.leases = [(4, 0), (4, 1)]
    assert client.credits == 1
    client.is_silent = True
    assert client.credits == 0


def test_what_a_client_waits_for(client: Client) -> None:
    assert client.wanted is None
    client.phase = Waiting(2, 30)
    assert client.wanted == (2, 30)
    assert client.pass_number is None


def test_who_read_a_pass_is_remembered_over_reconnects(client: Client) -> None:
    client.reconnect()
    assert client.phase == Idle()
    client.iteration = 5
    client.enter(1)
    assert client.phase == Reading(1)
    assert (client.last_entry, client.entered_passes) == ((5, 1), {1})
    for _ in range(2):
        client.reconnect()
        assert client.phase == Reconnecting()
    client.phase = Waiting(0, 0)
    client.reconnect()
    assert client.phase == Idle()
