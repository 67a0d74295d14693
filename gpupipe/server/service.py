"""The data processing server.

1. Two threads: run() owns the socket, the producer (producer.py) makes batches. One lock guards
   what both use; its condition wakes the producer.
2. The dispatcher (dispatch.py) answers each message as the sessions decide (batch_leases.py has the
   rules of the protocol). Each decision is in the write-ahead log before the answer is sent.
3. A malformed message is counted and dropped. A message on a connection without a session is
   dropped, and answered with UnknownSession.
4. No peer can make the server's memory grow. Batches go only to clients that have credits. Long
   answers are rate-limited (dispatch.py). The server ends the session of a client whose queue of
   messages is full. It cuts a connection that sends more than a client needs, or that opens no
   session (flood_guard.py).
5. If the engine fails, all clients get the error, and run() raises it. Clients that connect before
   the socket is closed get it too.
6. close() ends the producer and sends nothing: clients notice, and try to reconnect. The
   write-ahead log records the stop, unless an error caused it or stop(ends_run=False) was called.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from secrets import token_hex
from typing import Any

import zmq

from gpupipe.errors import ServerError
from gpupipe.loader import Loader
from gpupipe.protocol import codec
from gpupipe.protocol.batch_bytes import MalformedMessage
from gpupipe.protocol.sockets import Waker
from gpupipe.server.connections import Connections, listen
from gpupipe.server.dispatch import Dispatcher
from gpupipe.server.flood_guard import FloodGuard
from gpupipe.server.options import ServerOptions
from gpupipe.server.producer import Producer
from gpupipe.server.served_work import Plans, open_sessions, prepare_loader

_TICK_MS = 250
_LOOK_MS = 50
_MAX_RECEIVES = 200
_log = logging.getLogger("gpupipe")


class Server:
    """Serves the batches of a loader. Use it as a context manager, or call close().

    Args:
        loader: The loader to serve. Do not iterate it yourself meanwhile.
        options: How to serve; None for the defaults.

    Attributes:
        address: The address that the server listens on, with the actual port.
        options: How the server serves.
        loader: The loader whose batches the server sends; with `ship: uint8`, a new one.
        has_resumed: Whether the server continues from its state file.

    Raises:
        ConfigError: The samples cannot be split among the ranks.
        ServerError: The address or the state file cannot be used.
        StateError: The state file belongs to other data, another pipeline or other options.
    """

    def __init__(self, loader: Loader, options: ServerOptions | None = None) -> None:
        self.options = options or ServerOptions()
        self.loader, self._description = prepare_loader(loader, self.options)
        self._plans = Plans(self.loader.config, self.loader.index, self.options.clients or 1)
        self._changed = threading.Condition()
        self._stopping, self._ends_run = False, True
        self._running = threading.Lock()
        self._num_malformed, self._started = 0, time.monotonic()
        with ExitStack() as exits:
            self._socket, self.address = listen(self.options, exits)
            self._sessions, self._wal, self.has_resumed = open_sessions(
                self.loader, self.options, self._plans, self._description, exits
            )
            self._exits = exits.pop_all()
        self._waker = Waker()
        self._connections = Connections(
            self._sessions.state, self.options.compress, self._waker.wake, self._changed
        )
        self._guard = FloodGuard(
            self._socket, self._connections.token_of_route.__contains__, self.options.max_clients
        )
        history = token_hex(16) if self._wal is None else self._wal.history
        self._dispatcher = Dispatcher(
            self._sessions, self._connections, self._plans, history, self._description, self.stats
        )
        self._producer = Producer(
            self.loader.engine,
            self._plans,
            self._sessions,
            self._changed,
            self._connections.send_batch,
            self._dispatcher.send_failure,
        )

    # --- running

    def run(self, each: "Callable[[Server], None]" = lambda server: None) -> None:
        """Serve until stop() is called.

        Args:
            each: Called with the server about four times a second.

        Raises:
            Exception: The error that ended the producer.
        """
        with self._running:
            self._producer.start()
            self._loop(each)
            if self._producer.error is not None:
                raise self._producer.error

    def _loop(self, each: "Callable[[Server], None]") -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._guard.events, zmq.POLLIN)
        poller.register(self._waker.descriptor, zmq.POLLIN)
        ticked = looked = 0.0
        while not self._stopping and not self._is_over():
            ready = dict(poller.poll(_LOOK_MS))
            if self._waker.descriptor in ready:
                self._waker.clear()
            if self._guard.events in ready:
                self._guard.handle_events(time.monotonic())
            if self._socket in ready:
                self._receive_some()
            self._send_all()
            if time.monotonic() - looked > _LOOK_MS / 1000:
                looked = time.monotonic()
                self._guard.check_connections(looked)
            if time.monotonic() - ticked > _TICK_MS / 1000:
                ticked = time.monotonic()
                self._tick()
                each(self)
        self._send_all()

    def _is_over(self) -> bool:
        """Return whether the engine failed, and the server need not wait for clients any longer."""
        return not self._producer.is_alive() and self._dispatcher.final_error.may_close(
            set(self._connections.by_token)
        )

    def stop(self, ends_run: bool = True) -> None:
        """Make run() return. Safe to call from a signal handler or another thread.

        Args:
            ends_run: If False, the next server resumes from the state file, as after a crash.
        """
        self._ends_run = self._ends_run and ends_run
        self._stopping = True
        self._waker.wake()

    def close(self) -> None:
        """Stop run() and wait for its end, then release port, threads and memory. Idempotent."""
        self.stop()
        with self._running:
            if not self._socket.closed:
                self._close()

    def _close(self) -> None:
        if self._producer.is_alive():
            self._producer.end()
        self._guard.close()
        if self._wal is not None and self._ends_run and self._producer.error is None:
            try:
                self._wal.stop()
            except ServerError as e:
                _log.warning("gpupipe: %s", e)
        self._exits.close()
        with self._changed:
            for token in list(self._connections.by_token):
                self._connections.close(token)
        self.loader.close()
        self._waker.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is not None:
            self._ends_run = False
        self.close()

    # --- the socket

    def _receive_some(self) -> None:
        with self._changed:
            for _ in range(_MAX_RECEIVES):
                try:
                    head, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                except zmq.Again:
                    break
                route = head.bytes
                self._guard.on_message(route, frames, time.monotonic())
                try:
                    self._dispatcher.handle(route, codec.decode_from_client(frames))
                except MalformedMessage:
                    self._num_malformed += 1
            self._connections.flush()
            self._changed.notify_all()

    def _send_all(self) -> None:
        queue = self._connections.send_queue
        while queue:
            route, frames = queue.popleft()
            try:
                self._socket.send_multipart([route, *frames], zmq.NOBLOCK, copy=False)
            # The client does not read. It cannot continue without this message: end its session.
            except zmq.Again:
                with self._changed:
                    self._sessions.end(self._connections.token_of_route.get(route, ""))
                    self._connections.flush()
            except zmq.ZMQError as e:
                if e.errno != zmq.EHOSTUNREACH:
                    raise

    def _tick(self) -> None:
        with self._changed:
            self._dispatcher.apply_timeouts()
            self._connections.flush()
            self._changed.notify_all()

    def stats(self) -> dict[str, Any]:
        """Return the metrics that `gpupipe status` shows. Safe to call from any thread."""
        with self._changed:
            now = time.monotonic()
            return {
                "name": self._description["name"],
                "mode": self.options.mode,
                "pid": os.getpid(),
                "seconds": round(now - self._started, 3),
                **self._connections.sent,
                "malformed": self._num_malformed,
                "cut_connections": self._guard.num_cut,
                "hwm": self.options.hwm,
                **self._producer.stats(),
                "queued_messages": len(self._connections.send_queue),
                **self._sessions.stats(now),
            }
