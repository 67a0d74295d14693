"""What a peer may ask for how often, so that one that asks and never reads does not fill the server's memory with answers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_CONNECTIONS = 10_000


@dataclass
class Limits:
    """For what is long to answer, a Hello or an Ask: up to `burst` at once and `rate` a second, for each connection."""

    burst: float = 20.0
    rate: float = 4.0
    _left: OrderedDict[bytes, tuple[float, float]] = field(default_factory=OrderedDict)

    def allow(self, route: bytes, now: float) -> bool:
        """Whether a connection gets an answer. now: seconds, of a clock that only goes forward."""
        left, then = self._left.pop(route, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.rate)
        self._left[route] = max(0.0, left - 1), now
        while len(self._left) > _CONNECTIONS:
            self._left.popitem(last=False)
        return left >= 1
