"""Metrics of a running server: rates, a status line, a table for `gpupipe status`, and an endpoint
for Prometheus.

`stats` is the dict that Server.stats() returns.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from gpupipe.errors import ServerError, counted
from gpupipe.protocol.peers import import_zmq
from gpupipe.runtime.installation import install_command
from gpupipe.runtime.metrics_endpoint import MetricsEndpoint

if TYPE_CHECKING:
    from pathlib import Path

_RATE_SECONDS = 5.0
_MAX_NAMED, _SILENT_SECONDS = 4, 2.0
_COUNTERS = (
    ("batches", "batches", "Batches sent."),
    ("bytes", "bytes", "Bytes of the batches sent."),
    ("malformed", "malformed_messages", "Messages dropped because they were malformed."),
    ("cut_connections", "cut_connections", "Connections cut: too many bytes, or no session."),
)
"""(key in the stats, Prometheus name without prefix, help)."""
_GAUGES = (
    ("ready_batches", "ready_batches", "Batches made that no client has credits for yet."),
    ("hwm", "hwm", "Batches that a client may hold."),
)
_CLIENT_GAUGES = (
    ("leased", "leased_batches", "Batches sent to the client and not consumed yet."),
    ("consumed", "consumed_batches", "Batches that the client has consumed."),
    ("silent_seconds", "silent_seconds", "Seconds since the client was last heard."),
)


def format_line(stats: Mapping[str, Any], rates: tuple[float, float]) -> str:
    """Format the stats as one line: progress in each epoch, rates, buffers, clients.

    The last part of the line, which a terminal may cut off, has the first four clients: how many
    batches each holds, and for how long it was silent.

    Args:
        stats: The dict that Server.stats() returns.
        rates: (batches per second, MB per second).
    """
    clients = stats["clients"]
    held, room = sum(c["leased"] for c in clients), sum(c["hwm"] for c in clients)
    progress = ", ".join(
        f"epoch {p['epoch']}: {p['done']:,} of {p['steps']:,}" for p in stats["partitions"]
    )
    named = [
        f"{c['name']} holds {c['leased']}{describe_silence(c['silent_seconds'])}"
        for c in clients[:_MAX_NAMED]
    ]
    if len(clients) > _MAX_NAMED:
        named.append(f"and {len(clients) - _MAX_NAMED} more")
    holders = f" ({', '.join(named)})" if named else ""
    return (
        f"{progress or 'nothing asked for yet'}; {rates[0]:,.1f} batches/s, {rates[1]:,.0f} MB/s, "
        f"buffers {held} of {room}, {counted(len(clients), 'client')}{holders}"
    )


def describe_silence(seconds: float) -> str:
    """Return ", silent for N s" to put after a client's name, or "" for at most 2 seconds."""
    return f", silent for {seconds:.0f} s" if seconds > _SILENT_SECONDS else ""


def format_table(stats: Mapping[str, Any]) -> list[str]:
    """Format the stats as lines: one for the server, then one per client."""
    seconds = max(1e-9, stats["seconds"])
    line = format_line(stats, (stats["batches"] / seconds, stats["bytes"] / seconds / 1e6))
    return [
        f"{stats['name']}, {stats['mode']}, up {stats['seconds']:,.0f} s: {line}",
        *(
            f"  {c['name']}, rank {c['partition']}: holds {c['leased']} of {c['hwm']}, has "
            f"consumed {c['consumed']:,}{describe_silence(c['silent_seconds'])}"
            for c in stats["clients"]
        ),
    ]


def fetch_stats(
    address: str, key: "Path | None" = None, server_key: "Path | None" = None, patience: float = 5.0
) -> dict[str, Any]:
    """Return the stats of a running server.

    Args:
        address: tcp://HOST:PORT or ipc://FILE.
        key: File of the client's secret key; None for a server without keys.
        server_key: File of the server's public key; None for a server without keys.
        patience: Seconds to wait for an answer.

    Raises:
        ServerError: No server answers, or something else listens at the address.
    """
    zmq = import_zmq()
    from gpupipe.protocol import batch_bytes, codec, messages, sockets

    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.maxmsgsize = 0, codec.MESSAGE_LIMIT
        sockets.connect(socket, address, key, server_key)
        socket.send(codec.encode(messages.GetStats()))
        if not socket.poll(1000 * patience):
            sockets.describe_listener(address, key is not None)
            raise ServerError(
                f"no server answers at {address} within {patience:g} s; where it has keys, "
                "give --key and --server-key"
            )
        try:
            answer = codec.decode_from_server(socket.recv_multipart())
        except batch_bytes.MalformedMessage as e:
            raise ServerError(
                f"{address} does not speak as a server of gpupipe does: {e}"
            ) from None
    if not isinstance(answer, messages.Stats):
        raise ServerError(f"{address} does not answer what it was asked")
    return answer.stats


def _collect(server: Any) -> Iterator[Any]:
    """Yield the metrics of a server for Prometheus."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    stats = server.stats()
    for key, name, help_text in _COUNTERS:
        yield CounterMetricFamily(f"gpupipe_server_{name}", help_text, value=stats[key])
    for key, name, help_text in _GAUGES:
        yield GaugeMetricFamily(f"gpupipe_server_{name}", help_text, value=stats[key])
    clients = stats["clients"]
    yield GaugeMetricFamily("gpupipe_server_clients", "Connected clients.", value=len(clients))
    for key, name, help_text in _CLIENT_GAUGES:
        family = GaugeMetricFamily(f"gpupipe_server_client_{name}", help_text, labels=["client"])
        for c in clients:
            family.add_metric([c["name"]], c[key])
        yield family


@contextmanager
def serve_metrics(server: Any, port: int | None) -> Iterator[None]:
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
        endpoint = MetricsEndpoint(partial(_collect, server), port)
    except ModuleNotFoundError:
        raise ServerError(
            f"metrics need the package prometheus-client: {install_command('server')}"
        ) from None
    except OSError as e:
        raise ServerError(f"metrics cannot be given at port {port}: {e.strerror}") from None
    with closing(endpoint):
        yield


class Ticker:
    """Shows a status line regularly; use it as the `each` of Server.run().

    Args:
        show: Called with the line.
        every: Seconds between two lines.
    """

    def __init__(self, show: Callable[[str], None], every: float) -> None:
        self._show, self._every, self._last = show, every, 0.0
        self._samples: deque[tuple[float, int, int]] = deque()

    def __call__(self, server: Any) -> None:
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            stats = server.stats()
            self._show(format_line(stats, self.measure_rates(stats)))

    def measure_rates(self, stats: Mapping[str, Any]) -> tuple[float, float]:
        """Return (batches per second, MB per second), averaged over about the last five seconds.

        1 MB is 10^6 bytes.
        """
        now = stats["seconds"], stats["batches"], stats["bytes"]
        self._samples.append(now)
        while len(self._samples) > 2 and now[0] - self._samples[0][0] > _RATE_SECONDS:
            self._samples.popleft()
        first = self._samples[0]
        seconds = max(1e-9, now[0] - first[0])
        return (now[1] - first[1]) / seconds, (now[2] - first[2]) / seconds / 1e6
