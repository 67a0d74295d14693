"""When passes begin, who enters them, and what clients are told."""

import pytest

from gpupipe.protocol import messages
from gpupipe.server.clients_and_passes import BetweenPasses, Idle
from gpupipe.server.options import ServerOptions
from gpupipe.server.pass_schedule import RequestRefused
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import STEPS, consume_all, hello, joined, lease_all


def sessions_of_share() -> Sessions:
    return Sessions(ServerOptions(hwm=5), lambda *place: STEPS, (0, 0))


def test_the_first_client_starts_a_pass_and_is_told_so() -> None:
    sessions = sessions_of_share()
    token = joined(sessions, 1)
    assert sessions.state.outbox == [(token, messages.IterationStarted(1, 0, False))]
    assert sessions.state.clients[token].pass_number == 0
    sessions.state.outbox.clear()
    second = joined(sessions, 2)
    assert (second, messages.IterationStarted(1, 0, True)) in sessions.state.outbox


def test_the_next_pass_begins_with_the_first_that_asks_and_others_join_it() -> None:
    sessions = sessions_of_share()
    one, two = joined(sessions, 1), joined(sessions, 2)
    consume_all(sessions)
    assert {type(sessions.state.clients[token].phase) for token in (one, two)} == {BetweenPasses}
    sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert sessions.state.clients[one].pass_number == 1
    assert sessions.state.clients[two].pass_number is None
    sessions.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert sessions.state.clients[one].pass_number == sessions.state.clients[two].pass_number == 1


@pytest.mark.parametrize("opens", ["before the pass", "during the pass"])
def test_a_client_that_begins_when_others_have_read_its_epoch_gets_nothing_of_it(
    opens: str,
) -> None:
    """A machine under load may hold a process up for that long."""
    sessions, slow = sessions_of_share(), "f" * 32
    if opens == "before the pass":
        sessions.open(hello(slow), 0.0)
    one = joined(sessions, 1)
    if opens == "during the pass":
        held = lease_all(sessions)
        sessions.open(hello(slow), 0.0)
        sessions.batches.acknowledge(one, [(0, step) for step in held[one]])
    consume_all(sessions)
    sessions.state.outbox.clear()
    sessions.start_iteration(slow, messages.StartIteration(1, 0, 0, -1))
    assert sessions.state.outbox == [
        (slow, messages.IterationStarted(1, 0, False)),
        (slow, messages.PassEnded(0)),
    ]
    for token in (slow, one):
        sessions.start_iteration(token, messages.StartIteration(2, 1, 0, -1))
    assert sessions.state.clients[slow].pass_number == sessions.state.clients[one].pass_number == 1


def test_a_slow_client_joins_the_next_epoch_that_others_began_before_they_left() -> None:
    sessions, slow = sessions_of_share(), "f" * 32
    sessions.open(hello(slow), 0.0)
    one = joined(sessions, 1)
    consume_all(sessions)
    sessions.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    sessions.end(one)
    sessions.start_iteration(slow, messages.StartIteration(1, 0, 0, -1))
    assert sessions.state.clients[slow].pass_number == 1, "no new pass over epoch 0"


def test_an_epoch_that_the_user_names_is_read_again() -> None:
    sessions = sessions_of_share()
    token = joined(sessions, 1)
    consume_all(sessions)
    sessions.start_iteration(token, messages.StartIteration(2, 0, 0, -1, True))
    assert sessions.state.clients[token].pass_number == 1


def test_what_was_not_consumed_at_the_end_of_an_iteration_is_queued_again() -> None:
    sessions = sessions_of_share()
    one, two = joined(sessions, 1), joined(sessions, 2)
    held = lease_all(sessions)
    sessions.batches.acknowledge(one, [(0, held[one][0])])
    sessions.end_iteration(one)
    sessions.batches.acknowledge(two, [(0, step) for step in held[two]])
    rest = consume_all(sessions)
    assert sorted([held[one][0], *held[two], *rest[two]]) == list(range(STEPS))


def test_a_batch_without_samples_is_skipped() -> None:
    sessions = sessions_of_share()
    token = joined(sessions, 1)
    partition = sessions.state.clients[token].partition
    for step in range(STEPS):
        assert sessions.batches.take(partition) == (0, step)
        sessions.batches.skip((0, step))
    assert (token, messages.PassEnded(0)) in sessions.state.outbox


def test_an_error_ends_the_iterations_of_all_readers_of_its_pass() -> None:
    sessions = sessions_of_share()
    tokens = [joined(sessions, 1), joined(sessions, 2)]
    sessions.open(hello("f" * 32), 0.0)
    assert [client.token for client in sessions.end_iterations(0)] == tokens
    assert all(sessions.state.clients[token].pass_number is None for token in tokens)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_pass_is_not_entered_twice_while_others_read_it(epoch: int) -> None:
    """Whether the client asks for its epoch again, or for one before it."""
    sessions = sessions_of_share()
    tokens = joined(sessions, 1), joined(sessions, 2)
    consume_all(sessions)
    for token in tokens:
        sessions.start_iteration(token, messages.StartIteration(2, 1, 0, -1))
    with pytest.raises(RequestRefused, match=r"share epoch 1 now.* go on with epoch 2"):
        sessions.start_iteration(tokens[1], messages.StartIteration(3, epoch, 0, -1))
    assert sessions.state.clients[tokens[1]].phase == Idle()
