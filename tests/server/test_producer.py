"""The batches that the producer keeps."""

import threading
from typing import Any

from gpupipe.server.producer import Producer
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import OPTIONS, STEPS, joined, lease_all


def test_few_batches_wait_for_one_that_came_back() -> None:
    """Else a client that is silent again and again would make the memory of the server grow."""
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    joined(sessions, 1)
    lease_all(sessions)
    unused: Any = None
    producer = Producer(unused, unused, sessions, threading.Condition(), unused, unused)
    current = sessions.state.partitions["0"].current
    assert current is not None
    while (key := sessions.batches.take(sessions.state.partitions["0"])) is not None:
        producer._ready[key] = unused
    producer._drop_surplus(0)
    assert len(producer._ready) == STEPS - OPTIONS.hwm, "nothing came back"
    sessions.apply_timeouts(11.0, lambda hello: False)
    producer._drop_surplus(0)
    assert sorted(producer._ready) == [(0, step) for step in range(5, 5 + OPTIONS.hwm)]
    assert current.requeued == [3, 4, 10, 11]


def test_without_clients_the_engine_is_asked_for_nothing() -> None:
    """Else a server that nobody reads from would keep a core busy."""
    asked = threading.Event()

    class Idle:
        def batches(self, plans: Any) -> Any:
            asked.set()
            return iter(())

    sessions, changed = Sessions(OPTIONS, lambda *place: STEPS, (0, 0)), threading.Condition()
    unused: Any = None
    engine: Any = Idle()
    producer = Producer(engine, unused, sessions, changed, unused, unused)
    producer.start()
    try:
        for _ in range(3):
            with changed:
                changed.notify_all()
            assert not asked.wait(0.1)
    finally:
        producer.end()
