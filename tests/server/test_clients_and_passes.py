"""A pass, whose steps are queued, being made, leased or done; what a server knows of a client."""

import pytest

from gpupipe.server.clients_and_passes import (
    Client,
    EpochPass,
    Idle,
    Partition,
    Reading,
    Reconnecting,
    SessionStarted,
    Waiting,
)


def test_steps_go_from_queued_to_done() -> None:
    current = EpochPass(0, epoch=2, position=0, steps=2)
    assert [current.take(), current.take(), current.take()] == [0, 1, None]
    assert not current.has_queued
    for step in range(2):
        current.lease(step, "a")
    assert current.is_all_leased_to("a")
    assert not current.is_all_leased_to("b")
    assert current.can_finish(0)
    current.finish(0)
    assert not current.can_finish(0), "it is done already"
    assert not current.can_finish(2), "it was never taken"
    assert not current.is_over
    assert current.can_finish(1)
    current.finish(1)
    assert current.is_over


def test_what_is_requeued_is_taken_first_and_in_order() -> None:
    current = EpochPass(0, epoch=0, position=0, steps=6)
    for _ in range(4):
        current.take()
    current.lease(2, "a")
    current.requeue_leased(2)
    current.requeue_unmade(1)
    current.requeue_unmade(1)
    current.requeue_leased(3)
    assert current.num_taken == 2, "what is requeued was not taken"
    assert [current.take(), current.take(), current.take()] == [1, 2, 4]


def test_a_step_waits_for_earlier_ones_that_are_queued_or_made() -> None:
    current = EpochPass(0, epoch=0, position=0, steps=4)
    for _ in range(3):
        current.take()
    assert [current.is_first(step) for step in range(3)] == [True, False, False]
    assert current.num_making_in_order == 3
    current.requeue_unmade(1)
    assert current.num_making_in_order == 1, "step 2 waits for step 1"
    current.lease(0, "a")
    assert not current.is_first(2)


def test_a_requeued_step_can_be_leased_again_to_who_holds_it() -> None:
    current = EpochPass(0, epoch=0, position=0, steps=2)
    for step in range(2):
        current.take()
        current.lease(step, "a")
    for step in range(2):
        current.requeue_leased(step)
    current.lease(1, "a")
    assert current.take() == 0
    assert current.take() is None
    assert (current.leased, current.making) == ({1: "a"}, {0})


def test_after_a_restart_all_that_is_neither_leased_nor_done_is_queued() -> None:
    current = EpochPass(0, epoch=0, position=0, steps=5)
    for _ in range(3):
        current.take()
    current.lease(0, "a")
    current.lease(1, "a")
    current.finish(0)
    current.requeue_unfinished()
    assert [current.take() for _ in range(4)] == [2, 3, 4, None]


def test_where_the_next_client_of_a_partition_begins() -> None:
    partition = Partition("0", 0)
    assert partition.next_position((3, 40)) == (3, 40)
    partition.current = EpochPass(7, epoch=4, position=10, steps=1)
    assert partition.next_position((3, 40)) == (4, 10)
    partition.current.take()
    partition.current.finish(0)
    assert partition.next_position((3, 40)) == (5, 0)


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
