"""What is to be said of a running server: rates over the last seconds, a table for people, the same
for Prometheus, and the answer to `gpupipe status`.
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

_SECONDS = 5.0
_NAMED, _SILENT = 4, 2.0
_LOOPBACK = "127.0.0.1"


class Rates:
    """Batches and bytes a second over the last five seconds, out of facts that are given again and
    again.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, facts: Mapping[str, Any]) -> tuple[float, float]:
        """(batches a second, MB a second)."""
        now = facts["seconds"], facts["batches"], facts["bytes"]
        self._seen.append(now)
        while len(self._seen) > 2 and now[0] - self._seen[0][0] > _SECONDS:
            self._seen.popleft()
        first = self._seen[0]
        seconds = max(1e-9, now[0] - first[0])
        return (now[1] - first[1]) / seconds, (now[2] - first[2]) / seconds / 1e6


def line(facts: Mapping[str, Any], rates: tuple[float, float]) -> str:
    """How it goes, in a line.

    Of each of the first clients, how many batches it holds, and whether it was silent.
    """
    held, room = sum(c["holds"] for c in facts["clients"]), sum(c["hwm"] for c in facts["clients"])
    places = (
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
        f"{clients}; {places}"
    )


def _lags(clients: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for c in clients[:_NAMED]:
        yield f"{c['name']} holds {c['holds']}{_silence(c)}"
    if len(clients) > _NAMED:
        yield f"and {len(clients) - _NAMED} more"


def _silence(client: Mapping[str, Any]) -> str:
    return (
        f", silent for {client['silent_seconds']:.0f} s"
        if client["silent_seconds"] > _SILENT
        else ""
    )


def table(facts: Mapping[str, Any]) -> list[str]:
    """How it goes, client by client."""
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
    """The facts of a running server. Raises ServerError where none answers."""
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
            found = messages.from_server(socket.recv_multipart())
        except messages.MalformedMessage as e:
            raise ServerError(
                f"{address} does not speak as a server of gpupipe does: {e}"
            ) from None
    if not isinstance(found, messages.State):
        raise ServerError(f"{address} does not answer what it was asked")
    return found.facts


class _Collector:
    """What Prometheus is told, gathered when it asks."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        facts = self._server.facts_now()
        for name, what in (
            ("batches", "batches sent"),
            ("bytes", "bytes of batches sent"),
            ("malformed", "messages that were none"),
            ("cut", "connections cut for what they sent"),
        ):
            yield CounterMetricFamily(f"gpupipe_server_{name}", what, value=facts[name])
        for name, what in (
            ("parked", "batches made that nobody has room for"),
            ("hwm", "batches that a client may hold"),
        ):
            yield GaugeMetricFamily(f"gpupipe_server_{name}", what, value=facts[name])
        yield GaugeMetricFamily("gpupipe_server_clients", "clients", value=len(facts["clients"]))
        for name, what in (
            ("holds", "batches sent and not consumed"),
            ("consumed", "batches consumed"),
            ("silent_seconds", "seconds since it was heard"),
        ):
            family = GaugeMetricFamily(f"gpupipe_server_client_{name}", what, labels=["client"])
            for c in facts["clients"]:
                family.add_metric([c["name"]], c[name])
            yield family


@contextmanager
def exposed(server: Any, port: int | None) -> Iterator[None]:
    """Answer Prometheus at http://127.0.0.1:PORT/metrics meanwhile; nothing where there is no port.

    Raises ServerError.
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
    """Shows a line: each second where somebody watches, else each ten."""

    def __init__(self, show: Any, every: float) -> None:
        self._show, self._every, self._rates, self._last = show, every, Rates(), 0.0

    def __call__(self, server: Any) -> None:
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            facts = server.facts_now()
            self._show(line(facts, self._rates.add(facts)))
