"""What a server sends, what it does not send any more, and whom it lets in."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from gpupipe.protocol import peers
from gpupipe.sampling.sampler import Plan
from gpupipe.server.connections import AllowedKeys, Connections
from gpupipe.server.sessions import Sessions
from helpers.lease_tables import OPTIONS, STEPS, hello, joined, lease_all


def test_a_batch_that_was_requeued_while_it_was_copied_is_not_sent() -> None:
    """A client that was paused for long is told first what it lost, and would get it after that."""
    sessions = Sessions(OPTIONS, lambda *place: STEPS, (0, 0))
    token = joined(sessions, 1)
    lease_all(sessions)
    connections = Connections(sessions.state, "none", lambda: None, threading.RLock())
    pid = os.getpid()
    request = hello(
        token,
        host_id=connections.host_id,
        pid=pid,
        process_started=peers.start_time(pid),
        wants_shared_memory=True,
    )
    connections.open(b"route", request, OPTIONS.hwm)
    connections.flush()
    connections.send_queue.clear()
    sessions.apply_timeouts(11.0, lambda hello: False)
    plan = Plan(0, np.arange(2), 2, False)
    batch = {"image": torch.zeros(2, 3, 4, 4), "id": torch.arange(2)}
    for step, is_leased in [(2, True), (3, False)]:
        connections.send_batch(token, (0, step), plan, batch)
        assert len(connections.send_queue) == int(is_leased)
        connections.send_queue.clear()
        slots = connections.by_token[token].slots
        assert slots is not None
        assert len(slots._busy) == 1, "the slot of the other is free again"
    assert connections.sent["batches"] == 1
    connections.close(token)


def test_each_refused_key_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = {name: peers.create_keys(tmp_path / name, name) for name in ("known", "a", "b")}
    public = {name: peers.load_keys(pair[0], False)[0] for name, pair in pairs.items()}
    allowed = AllowedKeys(str(tmp_path / "known"))
    assert allowed.callback("gpupipe", public["known"])
    for name in ("a", "b", "a", "a"):
        assert not allowed.callback("gpupipe", public[name])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert public["a"].decode() in told[0]
    assert public["b"].decode() in told[1]
