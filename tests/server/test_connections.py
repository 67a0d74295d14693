"""What a server sends, and what it does not send any more."""

from __future__ import annotations

import os
import threading

import numpy as np
import torch

from gpupipe.protocol import processes
from gpupipe.sampling.sampler import Plan
from gpupipe.server.connections import Connections
from gpupipe.server.leases import Leases
from helpers.lease_tables import OPTIONS, STEPS, hello, joined, lease_all


def test_a_batch_that_was_requeued_while_it_was_copied_is_not_sent() -> None:
    """A client that was paused for long is told first what it lost, and would get it after that."""
    leases = Leases(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(leases, 1)
    lease_all(leases)
    connections = Connections(leases.state, "none", lambda: None, threading.RLock())
    pid = os.getpid()
    request = hello(
        token,
        host_id=connections.host_id,
        pid=pid,
        process_started=processes.start_time(pid),
        wants_shared_memory=True,
    )
    connections.open(b"route", request, OPTIONS.hwm)
    connections.flush()
    connections.send_queue.clear()
    leases.sessions.apply_timeouts(11.0, lambda hello: False)
    plan = Plan(0, np.arange(2), 2, False)
    batch = {"image": torch.zeros(2, 3, 4, 4), "id": torch.arange(2)}
    for step, is_leased in [(2, True), (3, False)]:
        connections.send_batch(token, (0, step), plan, batch)
        assert len(connections.send_queue) == int(is_leased)
        connections.send_queue.clear()
        slots = connections.by_token[token].slots
        assert slots is not None
        assert len(slots._busy) == 1, "the slot of the other is free again"
    assert connections.sent.batches == 1
    connections.close(token)
