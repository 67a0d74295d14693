"""A port that nobody else takes between one use and the next."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port below those that the system gives to connections and to port 0."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port
