"""Rate limits on requests, so that a peer that asks and never reads cannot fill the server's memory
with answers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_MAX_CONNECTIONS = 10_000


@dataclass
class TokenBucket:
    """A token bucket.

    Attributes:
        burst: Capacity, and the initial content.
        rate: Refill per second.
        last_refill: Time of the last refill, at first of the creation. Seconds, monotonic clock.
    """

    burst: float
    rate: float
    last_refill: float
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, amount: float, now: float) -> bool:
        """Take `amount`, or all that is left if that is less. Return whether there was enough."""
        left = min(self.burst, self._left + (now - self.last_refill) * self.rate)
        self._left, self.last_refill = max(0.0, left - amount), now
        return left >= amount


@dataclass
class RateLimits:
    """Rate limits per connection for messages with long answers, OpenSession and GetStats.

    Each connection may send 20 at once and 4 a second.
    """

    _buckets: OrderedDict[bytes, TokenBucket] = field(default_factory=OrderedDict)

    def allow(self, route: bytes, now: float) -> bool:
        """Return whether a connection gets an answer now. `now`: seconds, of a monotonic clock."""
        bucket = self._buckets.setdefault(route, TokenBucket(20, 4, now))
        self._buckets.move_to_end(route)
        while len(self._buckets) > _MAX_CONNECTIONS:
            self._buckets.popitem(last=False)
        return bucket.take(1, now)
