"""When passes begin, who enters them, and what clients are told."""

from __future__ import annotations

from gpupipe.protocol import messages
from gpupipe.server.client_state import BetweenPasses, LeaseRules
from gpupipe.server.leases import Leases
from helpers.lease_tables import STEPS, consume_all, hello, joined, lease_all


def leases_of_share() -> Leases:
    return Leases(LeaseRules(hwm=5), lambda *place: STEPS, (0, 0))


def test_the_first_client_starts_a_pass_and_is_told_so() -> None:
    leases = leases_of_share()
    token = joined(leases, 1)
    assert leases.outbox == [(token, messages.IterationStarted(1, 0, False))]
    assert leases.clients[token].pass_number == 0
    leases.outbox.clear()
    second = joined(leases, 2)
    assert (second, messages.IterationStarted(1, 0, True)) in leases.outbox


def test_the_next_pass_begins_with_the_first_that_asks_and_others_join_it() -> None:
    leases = leases_of_share()
    one, two = joined(leases, 1), joined(leases, 2)
    consume_all(leases)
    assert {type(leases.clients[token].phase) for token in (one, two)} == {BetweenPasses}
    leases.start_iteration(one, messages.StartIteration(2, 1, 0, -1))
    assert leases.clients[one].pass_number == 1
    assert leases.clients[two].pass_number is None
    leases.start_iteration(two, messages.StartIteration(2, 1, 0, -1))
    assert leases.clients[one].pass_number == leases.clients[two].pass_number == 1


def test_what_was_not_consumed_at_the_end_of_an_iteration_is_queued_again() -> None:
    leases = leases_of_share()
    one, two = joined(leases, 1), joined(leases, 2)
    held = lease_all(leases)
    leases.acknowledge(one, [(0, held[one][0])])
    leases.end_iteration(one)
    leases.acknowledge(two, [(0, step) for step in held[two]])
    rest = consume_all(leases)
    assert sorted([held[one][0], *held[two], *rest[two]]) == list(range(STEPS))


def test_a_batch_without_samples_is_skipped() -> None:
    leases = leases_of_share()
    token = joined(leases, 1)
    partition = leases.clients[token].partition
    for step in range(STEPS):
        assert leases.take(partition) == (0, step)
        leases.skip((0, step))
    assert (token, messages.PassEnded(0)) in leases.outbox


def test_an_error_ends_the_iterations_of_all_readers_of_its_pass() -> None:
    leases = leases_of_share()
    tokens = [joined(leases, 1), joined(leases, 2)]
    leases.open_session(hello("f" * 32), 0.0)
    assert [client.token for client in leases.fail_pass(0)] == tokens
    assert all(leases.clients[token].pass_number is None for token in tokens)
