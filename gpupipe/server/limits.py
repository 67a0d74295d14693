"""How much a peer may ask for, so that one that asks and never reads does not fill the server's
memory with answers.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

_CONNECTIONS = 10_000


@dataclass
class Allowance:
    """`burst` at once, and `rate` a second.

    then: when it was made, or used last; seconds of a clock that only goes forward.
    """

    burst: float
    rate: float
    then: float
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, amount: float, now: float) -> bool:
        """Whether so much was left. It is taken in either case, down to nothing."""
        left = min(self.burst, self._left + (now - self.then) * self.rate)
        self._left, self.then = max(0.0, left - amount), now
        return left >= amount


@dataclass
class Limits:
    """For what is long to answer, a Hello or an Ask: 20 at once and 4 a second, for each
    connection.
    """

    _of: OrderedDict[bytes, Allowance] = field(default_factory=OrderedDict)

    def allow(self, route: bytes, now: float) -> bool:
        """Whether a connection gets an answer."""
        mine = self._of.setdefault(route, Allowance(20, 4, now))
        self._of.move_to_end(route)
        while len(self._of) > _CONNECTIONS:
            self._of.popitem(last=False)
        return mine.take(1, now)
