"""An endpoint for Prometheus; tests/test_monitor.py and tests/server scrape one."""

import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gpupipe.runtime.metrics_endpoint import LOOPBACK, MetricsEndpoint


def collect() -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("answer", "The answer.", value=42)


def test_a_forked_child_that_lives_on_does_not_keep_the_port() -> None:
    pytest.importorskip("prometheus_client")
    ended, end = os.pipe()
    with closing(MetricsEndpoint(collect, 0)) as endpoint:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{endpoint.port}/metrics") as answer:
            assert "answer 42.0" in answer.read().decode()
        with pytest.raises(OSError, match="in use"):
            MetricsEndpoint(collect, endpoint.port)
        child = os.fork()
        if not child:
            os.close(end)
            os.read(ended, 1)  # until the parent closes its end
            os._exit(0)
    endpoint.close()
    with socket.socket() as probe:
        refused = probe.connect_ex((LOOPBACK, endpoint.port))
    os.close(end)
    os.waitpid(child, 0)
    os.close(ended)
    assert refused
