"""The socket to a server, for the thread that owns it, and the pipe that wakes this thread."""

from collections.abc import Iterator
from contextlib import suppress

import zmq

from gpupipe.engines.remote.session import ConnectionOptions
from gpupipe.protocol import codec, messages, sockets

_MAX_RECEIVES = 64


class ServerSocket:
    """A socket to a server. One thread uses it; any thread may call wake().

    That thread calls close(). After it has ended, another thread calls close_waker().

    Raises:
        ServerError: The address or a key file is wrong.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._context = zmq.Context(io_threads=2)
        self._socket = sockets.dial(self._context, options.address, options.key, options.server_key)
        self._waker = sockets.Waker()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._waker.descriptor, zmq.POLLIN)

    def wake(self) -> None:
        """End a call of wait() early. Safe from any thread."""
        self._waker.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until messages arrive or wake() was called; return whether messages have arrived."""
        ready = dict(self._poller.poll(max(0, int(1000 * seconds))))
        if self._waker.descriptor in ready:
            self._waker.clear()
        return self._socket in ready

    def wait_for_message(self, seconds: float) -> bool:
        """Wait until messages arrive; return whether they have."""
        return bool(self._socket.poll(int(1000 * seconds)))

    def send(self, message: messages.ToServer) -> bool:
        """Send a message. Return False if it is lost; the next OpenSession makes up for that."""
        with suppress(zmq.Again):
            self._socket.send(codec.encode(message), zmq.NOBLOCK)
            return True
        return False

    def receive(self) -> Iterator[list[zmq.Frame]]:
        """Yield the frames of messages that have arrived, of at most 64 of them."""
        with suppress(zmq.Again):
            for _ in range(_MAX_RECEIVES):
                yield self._socket.recv_multipart(zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(sockets.LINGER_MS)
        self._context.term()

    def close_waker(self) -> None:
        """Close the pipe of wake(), once no thread waits any more. Idempotent."""
        self._waker.close()
