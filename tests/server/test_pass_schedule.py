"""When passes begin, who enters them, and what clients are told."""

from __future__ import annotations

import pytest

from gpupipe.protocol import messages
from gpupipe.server.clients_and_passes import BetweenPasses, Idle
from gpupipe.server.leases import Leases
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from helpers.lease_tables import STEPS, consume_all, hello, joined, lease_all


def leases_of_share() -> Leases:
    return Leases(ServerOptions(hwm=5), lambda *place: STEPS, (0, 0))


def test_the_first_client_starts_a_pass_and_is_told_so() -> None:
    leases = leases_of_share()
    token = joined(leases, 1)
    assert leases.state.outbox == [(token, messages.IterationStarted(1, 0, False))]
    assert leases.state.clients[token].pass_number == 0
    leases.state.outbox.clear()
    second = joined(leases, 2)
    assert (second, messages.IterationStarted(1, 0, True)) in leases.state.outbox


def test_the_next_pass_begins_with_the_first_that_asks_and_others_join_it() -> None:
    leases = leases_of_share()
    one, two = joined(leases, 1), joined(leases, 2)
    consume_all(leases)
    assert {type(leases.state.clients[token].phase) for token in (one, two)} == {BetweenPasses}
    leases.sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert leases.state.clients[one].pass_number == 1
    assert leases.state.clients[two].pass_number is None
    leases.sessions.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert leases.state.clients[one].pass_number == leases.state.clients[two].pass_number == 1


@pytest.mark.parametrize("opens", ["before the pass", "during the pass"])
def test_a_client_that_begins_when_others_have_read_its_epoch_gets_nothing_of_it(
    opens: str,
) -> None:
    """A machine under load may hold a process up for that long."""
    leases, slow = leases_of_share(), "f" * 32
    if opens == "before the pass":
        leases.sessions.open(hello(slow), 0.0)
    one = joined(leases, 1)
    if opens == "during the pass":
        held = lease_all(leases)
        leases.sessions.open(hello(slow), 0.0)
        leases.batches.acknowledge(one, [(0, step) for step in held[one]])
    consume_all(leases)
    leases.state.outbox.clear()
    leases.sessions.start_iteration(slow, messages.StartIteration(1, 0, 0, -1))
    assert leases.state.outbox == [
        (slow, messages.IterationStarted(1, 0, False)),
        (slow, messages.PassEnded(0)),
    ]
    for token in (slow, one):
        leases.sessions.start_iteration(token, messages.StartIteration(2, 1, 0, -1))
    assert leases.state.clients[slow].pass_number == leases.state.clients[one].pass_number == 1


def test_a_slow_client_joins_the_next_epoch_that_others_began_before_they_left() -> None:
    leases, slow = leases_of_share(), "f" * 32
    leases.sessions.open(hello(slow), 0.0)
    one = joined(leases, 1)
    consume_all(leases)
    leases.sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    leases.sessions.end(one)
    leases.sessions.start_iteration(slow, messages.StartIteration(1, 0, 0, -1))
    assert leases.state.clients[slow].pass_number == 1, "no new pass over epoch 0"


def test_an_epoch_that_the_user_names_is_read_again() -> None:
    leases = leases_of_share()
    token = joined(leases, 1)
    consume_all(leases)
    leases.sessions.start_iteration(token, messages.StartIteration(2, 0, 0, -1, True))
    assert leases.state.clients[token].pass_number == 1


def test_what_was_not_consumed_at_the_end_of_an_iteration_is_queued_again() -> None:
    leases = leases_of_share()
    one, two = joined(leases, 1), joined(leases, 2)
    held = lease_all(leases)
    leases.batches.acknowledge(one, [(0, held[one][0])])
    leases.sessions.end_iteration(one)
    leases.batches.acknowledge(two, [(0, step) for step in held[two]])
    rest = consume_all(leases)
    assert sorted([held[one][0], *held[two], *rest[two]]) == list(range(STEPS))


def test_a_batch_without_samples_is_skipped() -> None:
    leases = leases_of_share()
    token = joined(leases, 1)
    partition = leases.state.clients[token].partition
    for step in range(STEPS):
        assert leases.batches.take(partition) == (0, step)
        leases.batches.skip((0, step))
    assert (token, messages.PassEnded(0)) in leases.state.outbox


def test_an_error_ends_the_iterations_of_all_readers_of_its_pass() -> None:
    leases = leases_of_share()
    tokens = [joined(leases, 1), joined(leases, 2)]
    leases.sessions.open(hello("f" * 32), 0.0)
    assert [client.token for client in leases.sessions.end_iterations(0)] == tokens
    assert all(leases.state.clients[token].pass_number is None for token in tokens)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_pass_is_not_entered_twice_while_others_read_it(epoch: int) -> None:
    """Whether the client asks for its epoch again, or for one before it."""
    leases = leases_of_share()
    tokens = joined(leases, 1), joined(leases, 2)
    consume_all(leases)
    for token in tokens:
        leases.sessions.start_iteration(token, messages.StartIteration(2, 1, 0, -1))
    with pytest.raises(RequestRefused, match=r"share epoch 1 now.* go on with epoch 2"):
        leases.sessions.start_iteration(tokens[1], messages.StartIteration(3, epoch, 0, -1))
    assert leases.state.clients[tokens[1]].phase == Idle()
