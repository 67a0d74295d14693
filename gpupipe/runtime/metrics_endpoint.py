"""Serves metrics to Prometheus. Needs the package prometheus-client."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpupipe.runtime.process import close_sockets_in_forks, keep_sockets_in_forks

LOOPBACK = "127.0.0.1"


class _Collector(NamedTuple):
    collect: Callable[[], Iterator[Any]]


class MetricsEndpoint:
    """Serves metrics at http://127.0.0.1:PORT/metrics until it is closed.

    Args:
        collect: Returns metric families of prometheus_client. Called at each request.
        port: The port; 0 takes a free one.

    Attributes:
        port: The port at which the metrics are served.

    Raises:
        ModuleNotFoundError: prometheus-client is not installed.
        OSError: The port cannot be used.
    """

    def __init__(self, collect: Callable[[], Iterator[Any]], port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_Collector(collect))
        self._http, self._thread = start_http_server(port, addr=LOOPBACK, registry=registry)
        self.port: int = self._http.server_port
        close_sockets_in_forks(self.port)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._http.server_close()
            keep_sockets_in_forks(self.port)
            self._thread.join()
