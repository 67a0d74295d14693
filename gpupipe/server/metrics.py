"""Metrics of a running server: rates, a status line, a table for `gpupipe status`, and an endpoint
for Prometheus.

"Facts" are the dict that Server.facts_now() returns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpupipe.errors import ServerError, counted
from gpupipe.protocol.keys import import_zmq

if TYPE_CHECKING:
    from pathlib import Path

_WINDOW_SECONDS = 5.0
_MAX_NAMED, _SILENT_SECONDS = 4, 2.0
_LOOPBACK = "127.0.0.1"


class Rates:
    """Batches and bytes per second over the last five seconds, from samples of the facts."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()

    def add(self, facts: Mapping[str, Any]) -> tuple[float, float]:
        """Add a sample. Return (batches per second, MB per second); 1 MB is 10^6 bytes."""
        now = facts["seconds"], facts["batches"], facts["bytes"]
        self._samples.append(now)
        while len(self._samples) > 2 and now[0] - self._samples[0][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        first = self._samples[0]
        seconds = max(1e-9, now[0] - first[0])
        return (now[1] - first[1]) / seconds, (now[2] - first[2]) / seconds / 1e6


def line(facts: Mapping[str, Any], rates: tuple[float, float]) -> str:
    """Format the facts as one line: rates, buffers, clients, progress in each epoch.

    For each of the first four clients it says how many batches it holds and whether it is silent.
    """
    held, room = sum(c["holds"] for c in facts["clients"]), sum(c["hwm"] for c in facts["clients"])
    progress = (
        ", ".join(
            f"epoch {lane['epoch']}: {lane['done']:,} of {lane['steps']:,}"
            for lane in facts["lanes"]
        )
        or "nothing asked for yet"
    )
    clients = counted(len(facts["clients"]), "client") + (
        f" ({', '.join(_lags(facts['clients']))})" if facts["clients"] else ""
    )
    return (
        f"{rates[0]:,.1f} batches/s, {rates[1]:,.0f} MB/s, buffers {held} of {room}, "
        f"{clients}; {progress}"
    )


def _lags(clients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for c in clients[:_MAX_NAMED]:
        yield f"{c['name']} holds {c['holds']}{_silence(c)}"
    if len(clients) > _MAX_NAMED:
        yield f"and {len(clients) - _MAX_NAMED} more"


def _silence(client: Mapping[str, Any]) -> str:
    return (
        f", silent for {client['silent_seconds']:.0f} s"
        if client["silent_seconds"] > _SILENT_SECONDS
        else ""
    )


def table(facts: Mapping[str, Any]) -> list[str]:
    """Format the facts as lines: one for the server, then one per client."""
    rates = (
        facts["batches"] / max(1e-9, facts["seconds"]),
        facts["bytes"] / max(1e-9, facts["seconds"]) / 1e6,
    )
    lines = [
        f"{facts['name']}, {facts['mode']}, up {facts['seconds']:,.0f} s: {line(facts, rates)}"
    ]
    for c in facts["clients"]:
        lines.append(
            f"  {c['name']}, rank {c['lane']}: holds {c['holds']} of {c['hwm']}, has "
            f"consumed {c['consumed']:,}{_silence(c)}"
        )
    return lines


def ask(
    address: str, key: Path | None = None, server_key: Path | None = None, patience: float = 5.0
) -> dict[str, Any]:
    """Return the facts of a running server.

    Args:
        address: tcp://HOST:PORT or ipc://FILE.
        key: File of this side's secret key, for a server with keys.
        server_key: File of the server's public key.
        patience: Seconds to wait for an answer.

    Raises:
        ServerError: No server answers, or something else listens at the address.

    """
    zmq = import_zmq()
    from gpupipe.protocol import keys, messages, peer

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.maxmsgsize = 0, messages.MESSAGE_LIMIT
        if key is not None and server_key is not None:
            keys.secure_client(socket, key, server_key)
        try:
            socket.connect(address)
        except zmq.ZMQError as e:
            raise ServerError(
                f"'{address}' is no address of a server: {e}; write tcp://HOST:PORT"
            ) from None
        socket.send(messages.encode(messages.Ask()))
        if not socket.poll(1000 * patience):
            peer.check(address, key is not None)
            raise ServerError(
                f"no server answers at {address} within {patience:g} s; where it has keys, "
                "give --key and --server-key"
            )
        try:
            answer = messages.from_server(socket.recv_multipart())
        except messages.MalformedMessage as e:
            raise ServerError(
                f"{address} does not speak as a server of gpupipe does: {e}"
            ) from None
    if not isinstance(answer, messages.State):
        raise ServerError(f"{address} does not answer what it was asked")
    return answer.facts


class _Collector:
    """Collects the metrics at each request from Prometheus."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        facts = self._server.facts_now()
        for name, help_text in (
            ("batches", "batches sent"),
            ("bytes", "bytes of batches sent"),
            ("malformed", "messages that were none"),
            ("cut", "connections cut for what they sent"),
        ):
            yield CounterMetricFamily(f"gpupipe_server_{name}", help_text, value=facts[name])
        for name, help_text in (
            ("parked", "batches made that no client has room for"),
            ("hwm", "batches that a client may hold"),
        ):
            yield GaugeMetricFamily(f"gpupipe_server_{name}", help_text, value=facts[name])
        yield GaugeMetricFamily("gpupipe_server_clients", "clients", value=len(facts["clients"]))
        for name, help_text in (
            ("holds", "batches sent and not consumed"),
            ("consumed", "batches consumed"),
            ("silent_seconds", "seconds since it was heard"),
        ):
            family = GaugeMetricFamily(
                f"gpupipe_server_client_{name}", help_text, labels=["client"]
            )
            for c in facts["clients"]:
                family.add_metric([c["name"]], c[name])
            yield family


@contextmanager
def exposed(server: Any, port: int | None) -> Iterator[None]:
    """Serve metrics to Prometheus at http://127.0.0.1:PORT/metrics inside the `with` block.

    Args:
        server: The running server.
        port: TCP port, or None to serve no metrics.

    Raises:
        ServerError: prometheus-client is not installed, or the port cannot be used.

    """
    if port is None:
        yield
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError:
        raise ServerError(
            "metrics need the package prometheus-client: pip install 'gpupipe[server]'"
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(server))
    try:
        http, thread = start_http_server(port, addr=_LOOPBACK, registry=registry)
    except OSError as e:
        raise ServerError(f"metrics cannot be given at port {port}: {e.strerror}") from None
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


class Ticker:
    """Shows a status line regularly; use it as the `each` of Server.run().

    Args:
        show: Called with the line.
        every: Seconds between two lines.

    """

    def __init__(self, show: Any, every: float) -> None:
        self._show, self._every, self._rates, self._last = show, every, Rates(), 0.0

    def __call__(self, server: Any) -> None:
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            facts = server.facts_now()
            self._show(line(facts, self._rates.add(facts)))
