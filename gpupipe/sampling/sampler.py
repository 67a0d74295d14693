"""Which samples make which batch: a pure function of (seed, epoch, position, rank, world size)."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.source import Population
from gpupipe.errors import ConfigError, Problem, StateError, counted, short, shown
from gpupipe.sampling import draws


@dataclass(frozen=True)
class Plan:
    """One batch of one rank.

    ids: int64 (B,), rows of the index. end: the samples of the epoch that all ranks have had after
    it. last: it ends the epoch.
    """

    epoch: int
    ids: NDArray[np.int64]
    end: int
    last: bool


@dataclass(frozen=True)
class Layout:
    """How `total` samples are dealt out in equal steps to `world_size` ranks, none of them ever
    without a sample.

    All batches are full but the last. With "partial" the last step deals out what is left as evenly
    as it can; where a rank would get nothing, the ranks that are behind give one sample of the step
    before to it. With "drop" what is left is not delivered, with "pad" it is filled up with samples
    from the start.
    """

    total: int
    batch_size: int
    world_size: int
    last_batch: str

    @property
    def steps(self) -> int:
        everyone = self.batch_size * self.world_size
        return self.total // everyone if self.last_batch == "drop" else -(-self.total // everyone)

    def sizes(self, step: int) -> NDArray[np.int64]:
        """The batch size of every rank at a step, int64 (world_size,)."""
        full = np.full(self.world_size, self.batch_size, np.int64)
        if self.last_batch != "partial" or step < self.steps - 2:
            return full
        shares = self._shares() - (self.steps - 1) * self.batch_size
        short = shares < 1
        return np.maximum(shares, 1) if step == self.steps - 1 else full - short

    def start(self, step: int) -> int:
        """How many samples all ranks have had before a step."""
        return step * self.batch_size * self.world_size - (
            self._borrowed() if step == self.steps - 1 and step > 0 else 0
        )

    def _shares(self) -> NDArray[np.int64]:
        """The samples of every rank."""
        each, rest = divmod(self.total, self.world_size)
        return each + (np.arange(self.world_size) < rest)

    def _borrowed(self) -> int:
        if self.last_batch != "partial":
            return 0
        return int((self._shares() - (self.steps - 1) * self.batch_size < 1).sum())

    def problem(self) -> str:
        """Why these samples cannot be dealt out so, or ""."""
        samples, ranks = counted(self.total, "sample"), counted(self.world_size, "rank")
        if self.total < 1:
            return "there are no samples"
        if self.last_batch == "drop" and self.total < self.batch_size * self.world_size:
            return (
                f"{samples} cannot give {ranks} a full batch of {self.batch_size} each: make "
                "batch_size smaller, or set last_batch: partial"
            )
        if self.last_batch == "partial" and self.total < self.world_size:
            return (
                f"{samples} cannot give each of {ranks} one: use fewer ranks, or set "
                "last_batch: pad"
            )
        if self.last_batch == "partial" and self.batch_size == 1 and self.total % self.world_size:
            return (
                f"{samples} one at a time cannot give {ranks} equal steps: set batch_size above "
                "1, or last_batch: drop or pad"
            )
        return ""


class Sampler:
    """The order of every epoch, and where in it the loader is.

    population: which of the samples each epoch has, where that is not always all of them.
    """

    population: Population | None = None
    settings = frozenset({"batch_size", "shuffle", "seed", "last_batch"})
    """Of `loader:`."""

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        last_batch: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Raises ConfigError where `count` samples cannot be dealt out so that every rank has equal
        steps and no empty batch.
        """
        self.count, self.batch_size, self.shuffle, self.seed = count, batch_size, shuffle, seed
        self.last_batch, self.rank, self.world_size = last_batch, rank, world_size
        self._epoch, self._position = 0, 0
        problem = self._problem(count)
        if problem:
            raise ConfigError([Problem("loader", problem)])

    def __len__(self) -> int:
        """Batches that the whole of the next epoch has on this rank."""
        return self._layout(self._epoch, 0).steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._epoch

    @property
    def position(self) -> int:
        """The samples of that epoch, counted over all ranks, that the next iteration leaves out,
        being delivered already.
        """
        return self._position

    @property
    def left(self) -> int:
        """Batches that the next iteration has on this rank: those of a whole epoch, or of the rest
        where a loaded state stands in its middle.
        """
        return self._layout(self._epoch, self._position).steps

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver `epoch`.

        It delivers all of it, or the rest of it where a loaded state stands in the middle of it.

        Args:
            epoch: A whole number from 0 on, also one of NumPy's.

        Raises:
            ConfigError: if `epoch` is anything else.

        """
        number = _whole_epoch(epoch)
        if number != self._epoch:
            self._epoch, self._position = number, 0

    def begin(self) -> Iterator[Plan]:
        """The plans of the next epoch, or of the rest of it; the epoch after it is then the
        next.
        """
        epoch, position = self._epoch, self._position
        self._epoch, self._position = epoch + 1, 0
        return self._plans(epoch, position)

    def endless(self) -> Iterator[Plan]:
        """What `begin` gives, and behind it all epochs that follow, for those who work ahead of
        what is asked for. Nothing begins by it.
        """
        epoch, position = self._epoch, self._position
        later = (self._plans(e, 0) for e in itertools.count(epoch + 1))
        return itertools.chain(self._plans(epoch, position), itertools.chain.from_iterable(later))

    def plans_ahead(self) -> Iterator[Plan]:
        """The plans of the next epoch, then those of all following epochs that can begin without
        waiting.

        An engine works ahead on these. It must not wait for samples of a later epoch while the
        consumer waits for the rest of this one: a cache that is full of this epoch's samples only
        makes room when this epoch ends.
        """
        epoch, position = self._epoch, self._position
        return itertools.chain(self._plans(epoch, position), self._ready_after(epoch))

    def _ready_after(self, epoch: int) -> Iterator[Plan]:
        for later in itertools.count(epoch + 1):
            if self.population is not None and not self.population.is_ready(later, self._problem):
                return
            yield from self._plans(later, 0)

    def state_after(self, plan: Plan) -> dict[str, Any]:
        """What `load_state` takes to go on behind a batch; behind the last of an epoch, with the
        next epoch.
        """
        if plan.last:
            return self._state(plan.epoch + 1, 0)
        return self._state(plan.epoch, plan.end)

    def state(self) -> dict[str, Any]:
        """What `load_state` takes to begin where the next iteration begins."""
        return self._state(self._epoch, self._position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        state = {"seed": self.seed, "shuffle": self.shuffle, "epoch": epoch, "position": position}
        return (
            state
            if self.population is None
            else state | {"generation": self.population.generation(epoch)}
        )

    def load_state(self, state: dict[str, Any], strict: bool = True) -> None:
        """Go on where the state was made, also with another batch size or world size: what is left
        of the epoch is dealt out anew.

        strict: raise StateError where the state belongs to another order. Raises StateError where
        what is left cannot be dealt out.
        """
        for key in ("seed", "shuffle") if strict else ():
            theirs, ours = state[key], getattr(self, key)
            if theirs != ours:
                raise StateError(
                    f"the state was made with {key} {shown(theirs)}, and this loader has "
                    f"{key} {shown(ours)}: set loader.{key}={shown(theirs)}, or strict=False"
                )
        epoch, position = state["epoch"], state["position"]
        count = self._count_at(state)
        if not strict and type(position) is int:
            position = min(position, count)
        if not all(type(n) is int and n >= 0 for n in (epoch, position)) or position > count:
            raise StateError(
                f"the state stands at sample {shown(position)} of epoch {shown(epoch)}, and "
                f"an epoch of this data set has {count}"
            )
        if position and self._layout(epoch, position).steps == 0:
            epoch, position = epoch + 1, 0
        problem = self._layout(epoch, position).problem() if position else ""
        if problem:
            raise StateError(
                f"what is left of the epoch cannot be dealt out: {problem}, or leave it "
                f"out: sampler.set_epoch({epoch + 1})"
            )
        self._epoch, self._position = epoch, position

    def order(self, epoch: int) -> NDArray[np.int64]:
        """All ids in the order of an epoch, int64 (n,)."""
        count = self._count(epoch)
        places = (
            draws.permutation(self.seed, epoch, count)
            if self.shuffle
            else np.arange(count, dtype=np.int64)
        )
        return (
            places if self.population is None else self.population.ids(epoch, self._problem)[places]
        )

    def _count(self, epoch: int) -> int:
        """The samples of an epoch."""
        return (
            self.count
            if self.population is None
            else len(self.population.ids(epoch, self._problem))
        )

    def _count_at(self, state: dict[str, Any]) -> int:
        """The samples of a state's epoch, which is settled by it; of all where it has settled
        none.
        """
        generation = state.get("generation")
        if (
            self.population is None
            or type(generation) is not int
            or type(state["epoch"]) is not int
        ):
            return self.count
        self.population.resume(state["epoch"], generation)
        return self._count(state["epoch"])

    def _problem(self, count: int) -> str:
        return Layout(count, self.batch_size, self.world_size, self.last_batch).problem()

    def _layout(self, epoch: int, position: int) -> Layout:
        return Layout(
            self._count(epoch) - position, self.batch_size, self.world_size, self.last_batch
        )

    def _plans(self, epoch: int, position: int) -> Iterator[Plan]:
        order, layout = self.order(epoch), self._layout(epoch, position)
        for step in range(layout.steps):
            sizes = layout.sizes(step)
            start = position + layout.start(step)
            mine = start + int(sizes[: self.rank].sum())
            places = np.arange(mine, mine + sizes[self.rank]) % len(order)
            yield Plan(epoch, order[places], start + int(sizes.sum()), step == layout.steps - 1)


def _whole_epoch(epoch: object) -> int:
    """`epoch` as an int. Raises ConfigError if it is no whole number from 0 on."""
    if isinstance(epoch, numbers.Integral) and not isinstance(epoch, bool) and int(epoch) >= 0:
        return int(epoch)
    rule = "an epoch is a whole number from 0 on, such as sampler.epoch or the epoch of the trainer"
    raise ConfigError([Problem("", f"set_epoch({short(repr(epoch))}): {rule}")])
