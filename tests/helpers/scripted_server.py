"""A server whose messages a test plays one by one, and clients of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq

from gpupipe.engines.remote.connection import Connection
from gpupipe.engines.remote.session import ConnectionOptions
from gpupipe.protocol import batch_bytes, codec, messages


def keep(tensors: Any, epoch: int) -> Any:
    """Finish a batch: leave it as it is."""
    return tensors


FIELDS = [batch_bytes.TensorField("id", "int64", (2,), False)]
HISTORY = "a" * 32


class Other:
    """The other side of one connection, message by message."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._route = socket, b""

    def hear(
        self,
        *kinds: type[
            messages.OpenSession
            | messages.StartIteration
            | messages.Acknowledge
            | messages.CloseSession
        ],
    ) -> Any:
        """The next message of these kinds; others, such as signs of life, are passed over, but for
        a second Hello of one that waits long: it is answered.
        """
        while True:
            assert self._socket.poll(20_000), f"none of {kinds} came"
            self._route, frame = self._socket.recv_multipart()
            message = codec.decode_from_client([frame])
            if isinstance(message, kinds):
                return message
            if isinstance(message, messages.OpenSession):
                self.say(self.welcome(message.held))

    def say(self, *frames: messages.ToClient | bytes) -> None:
        self._socket.send_multipart(
            [self._route, *(f if isinstance(f, bytes) else codec.encode(f) for f in frames)]
        )

    def welcome(self, yours: list[messages.Key]) -> messages.SessionOpened:
        return messages.SessionOpened(messages.VERSION, HISTORY, 1, yours, 0, 0, 0, 1, {})

    def open(self) -> None:
        """Hear a Hello, and let the client in, without a batch of its own."""
        self.hear(messages.OpenSession)
        self.let_in([])

    def close(self) -> None:
        """Hear a Good-bye, and answer it."""
        self.hear(messages.CloseSession)
        self.say(messages.SessionClosed())

    def let_in(self, yours: list[messages.Key]) -> messages.StartIteration:
        """Answer a Hello, and the Begin that follows: the client is in run 0."""
        self.say(self.welcome(yours))
        begin: messages.StartIteration = self.hear(messages.StartIteration)
        self.say(messages.IterationStarted(begin.iteration, 0))
        return begin

    def batch(self, step: int) -> None:
        """A batch whose two ids are its step."""
        data = np.full(2, step, np.int64).tobytes()
        self.say(messages.BatchHeader((0, step), 0, 2 * step + 2, False, FIELDS, len(data), None))
        self.say(messages.BatchPart((0, step), 0, len(data), ""), data)


@contextmanager
def other_side(play: Callable[[Other], None]) -> Iterator[str]:
    """A server that plays what it is told, in a thread; its address."""
    failed: list[BaseException] = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def run() -> None:
            try:
                play(Other(socket))
            except BaseException as e:
                failed.append(e)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{port}"
        finally:
            thread.join(30)
    assert not failed, failed


def begin(address: str) -> Connection:
    """A client that is known, and has begun an iteration."""
    connection = Connection(ConnectionOptions(address, patience=10.0))
    assert connection.open().history == HISTORY
    connection.start_iteration(0, 0, keep)
    return connection
