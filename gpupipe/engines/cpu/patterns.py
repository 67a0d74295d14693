"""Patterns: the types of successive operations that one kernel can run; see Rule in program.py."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from gpupipe.engines.cpu.ops import Op

_Op = TypeVar("_Op", bound=Op)


class Maybe(NamedTuple):
    """Marks an operation of a pattern that may be absent."""

    kind: type[Op]


class Series(NamedTuple):
    """Marks one or more successive operations of these types that `accepts` returns True for."""

    kinds: tuple[type[Op], ...]
    accepts: Callable[[Op], bool]


Pattern = tuple[type[Op] | Maybe | Series, ...]
"""The types of successive operations. Each type occurs at most once, but for those of a Series."""


class Match:
    """The operations that matched a pattern. `match[CropOp]` is the operation of that type."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self._by_kind = {type(op): op for op in ops}

    def get(self, kind: type[_Op]) -> _Op | None:
        """Return the operation of type `kind`; None if the match has none."""
        op = self._by_kind.get(kind)
        return op if isinstance(op, kind) else None

    def __getitem__(self, kind: type[_Op]) -> _Op:
        op = self.get(kind)
        assert op is not None
        return op


def match_pattern(pattern: Pattern, ops: Sequence[Op]) -> Match | None:
    """Return the operations at the start of `ops` that match `pattern`; None without a match."""
    count = 0
    for part in pattern:
        if isinstance(part, Series):
            begin = count
            while count < len(ops) and type(ops[count]) in part.kinds and part.accepts(ops[count]):
                count += 1
            if count == begin:
                return None
            continue
        kind = find_kind(part)
        if count < len(ops) and type(ops[count]) is kind:
            count += 1
        elif kind is part:
            return None
    return Match(ops[:count])


def find_kind(part: type[Op] | Maybe) -> type[Op]:
    """Return the type of the operation that a part of a pattern stands for."""
    return part.kind if isinstance(part, Maybe) else part
