"""Decides which samples are in which batch.

The plan is a pure function of (seed, epoch, position, rank, world size), plus the batch size and
the other settings of `loader:`.
"""

import itertools
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.population import Population
from gpupipe.errors import ConfigError, StateError, short, shown
from gpupipe.sampling.epochs import EpochLayout, count_earlier, order_epoch
from gpupipe.sampling.selection import ALL_ONCE, DEFAULTS, Selection, check_settings
from gpupipe.sampling.siblings import Siblings

_MADE_AT_ONCE, _MAX_ROWS = 16, 2048
"""How many plans of an epoch are made at once, and the maximum number of their samples. The work on
a batch drops the code that makes plans from the processor's caches, so a plan made alone takes
eight times as long as one of several."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The samples of one batch on one rank. A plan equals only itself.

    Attributes:
        epoch: The epoch, from 0.
        ids: Rows of the index, int64 (B,).
        end: How many samples of the epoch all ranks together have had after this step.
        last: Whether the batch ends the epoch.
        tag: An object by which the creator of the plan recognises it when its batch arrives.
            Engines pass it on unchanged, also if they skip samples.
        repeats: How often each sample came before in the order of the epoch, int64 (B,). None:
            never. Engines pass it to `Entry.parameters`, so that each repeat gets other draws.
        annotations: The boxes and points of the samples after all steps, a BatchAnnotations, once
            `Job.annotate` has computed them; None before, and if the data has none.
        siblings: The plans with which this one was made; None if it was changed since.
        number: The position among them.
    """

    epoch: int
    ids: NDArray[np.int64]
    end: int
    last: bool
    tag: Any = None
    repeats: NDArray[np.int64] | None = None
    annotations: Any = None
    siblings: Siblings | None = None
    number: int = 0

    def select(self, chosen: Sequence[int] | NDArray[Any]) -> "Plan":
        """Return a plan with only some of the samples.

        Args:
            chosen: Positions in `ids`, or a bool for each id.
        """
        repeats = None if self.repeats is None else self.repeats[chosen]
        annotations = self.annotations and self.annotations.select(chosen)
        ids = self.ids[chosen]
        return replace(self, ids=ids, repeats=repeats, annotations=annotations, siblings=None)


class Sampler:
    """Plans the batches of every epoch, and keeps the loader's position.

    Attributes:
        population: Chooses the samples of each epoch, for a source whose samples are not all
            available at all times. None for other sources.
        selection: Which samples an epoch has, and how often.
        settings: The keys of `loader:` that a sampler implements.
    """

    settings = frozenset({"batch_size", "shuffle", "seed", "last_batch", "split", *DEFAULTS})

    def __init__(
        self,
        count: int | None,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        last_batch: str,
        rank: int = 0,
        world_size: int = 1,
        population: Population | None = None,
        selection: Selection = ALL_ONCE,
    ) -> None:
        """Create a sampler that begins with epoch 0.

        Args:
            count: The number of samples in the index; None if only the population knows it.
            batch_size: Samples per batch and rank.
            shuffle: Permute the samples in every epoch; else their order is that of the index.
            seed: Seeds the permutations.
            last_batch: "partial", "drop" or "pad": see EpochLayout.
            rank: This process's rank, 0 to world_size - 1.
            world_size: The number of ranks.
            population: Chooses the samples of each epoch; None if all are always available.
            selection: Which samples an epoch has, and how often; by default, all once.

        Raises:
            ConfigError: If the samples cannot be divided into equal steps without empty batches.
        """
        self.count = (count or 0) if selection.rows is None else len(selection.rows)
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.last_batch, self.rank, self.world_size = last_batch, rank, world_size
        self.population, self.selection = population, selection
        self._epoch, self._position = 0, 0
        if count is not None and (problem := self._problem(self.count)):
            raise ConfigError.at("loader", problem)

    def __len__(self) -> int:
        """Return how many batches this rank gets in the next epoch, from the epoch's start on."""
        return self.count_batches(self._epoch)

    def count_batches(self, epoch: int) -> int:
        """Return how many batches this rank gets in an epoch, from the epoch's start on."""
        return self._layout(epoch, 0).num_steps

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration delivers."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many samples of `epoch` the next iteration skips, as the ranks already had them."""
        return self._position

    @property
    def epoch_size(self) -> int:
        """How many samples the whole next epoch has, over all ranks and with repeats.

        Samples that `last_batch` drops are counted; samples that it pads with are not.
        """
        return self._size(self._epoch)

    @property
    def left(self) -> int:
        """The number of batches from `position` to the end of `epoch`, on this rank."""
        return self._layout(self._epoch, self._position).num_steps

    @property
    def end_of_step(self) -> int:
        """The position after the first step of the next iteration."""
        return self._position + self._layout(self._epoch, self._position).end(0)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration deliver `epoch`.

        If `epoch` is the next epoch already, this changes nothing: after a loaded state, the next
        iteration then delivers the rest of that epoch.

        Args:
            epoch: A whole number from 0 on; NumPy integers count too.

        Raises:
            ConfigError: If `epoch` is not a whole number, or is below 0.
        """
        is_whole = isinstance(epoch, numbers.Integral) and not isinstance(epoch, bool)
        if not is_whole or int(epoch) < 0:
            raise ConfigError.at(
                "",
                f"set_epoch({short(repr(epoch))}): an epoch is a whole number from 0 on, such as "
                "sampler.epoch or the epoch of the trainer",
            )
        if int(epoch) != self._epoch:
            self._epoch, self._position = int(epoch), 0

    def begin(self) -> Iterator[Plan]:
        """Return the plans of `epoch` from `position` on, and advance to the next epoch."""
        epoch, position = self._epoch, self._position
        self._epoch, self._position = epoch + 1, 0
        return self._plans(epoch, position)

    def iter_forever(self) -> Iterator[Plan]:
        """Return the plans of `epoch` from `position` on, then of later epochs without end."""
        return self._iter_epochs(itertools.count(self._epoch + 1))

    def plans_ahead(self) -> Iterator[Plan]:
        """Return the plans of `epoch`, then of later epochs while their samples are ready.

        An engine works ahead on these plans. It must not wait for samples of a later epoch while
        the consumer waits for batches of this epoch: a cache that is full of this epoch's samples
        makes room only when this epoch ends.
        """
        later = itertools.count(self._epoch + 1)
        return self._iter_epochs(itertools.takewhile(self._is_ready, later))

    def _iter_epochs(self, later: Iterator[int]) -> Iterator[Plan]:
        """Return the plans of `epoch` from `position` on, then of the epochs in `later`."""
        following = (self._plans(epoch, 0) for epoch in later)
        rest = self._plans(self._epoch, self._position)
        return itertools.chain(rest, itertools.chain.from_iterable(following))

    def _is_ready(self, epoch: int) -> bool:
        return self.population is None or self.population.is_ready(epoch, self._problem)

    def state_after(self, plan: Plan) -> dict[str, Any]:
        """Return the state with which `load_state` continues after a batch.

        After the last batch of an epoch, `load_state` continues with the next epoch.
        """
        if plan.last:
            return self._state(plan.epoch + 1, 0)
        return self._state(plan.epoch, plan.end)

    def state(self) -> dict[str, Any]:
        """Return the position at which the next iteration begins, as a state for `load_state`."""
        return self._state(self._epoch, self._position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        order = {"seed": self.seed, "shuffle": self.shuffle, "epoch": epoch, "position": position}
        state: dict[str, Any] = {**order, **self.selection.settings}
        if self.population is not None:
            state["generation"] = self.population.generation(epoch)
        return state

    def load_state(self, state: dict[str, Any], strict: bool = True) -> None:
        """Continue at a saved position.

        The batch size and the world size may differ from those of the state: the remaining samples
        of the epoch are divided again.

        Args:
            state: The dict from `state` or `state_after`.
            strict: Refuse a state that was made with other settings: see `check_settings`.

        Raises:
            StateError: If the state does not fit this sampler, or the remaining samples cannot be
                divided into equal steps.
        """
        if strict:
            check_settings(state, self.state())
        epoch, position = state["epoch"], state["position"]
        size = self._size_at(state)
        if not strict and type(position) is int:
            position = min(position, size)
        if not all(type(n) is int and n >= 0 for n in (epoch, position)) or position > size:
            raise StateError(
                f"the state is at sample {shown(position)} of epoch {shown(epoch)}, and "
                f"an epoch of this data set has {size}"
            )
        if position and self._layout(epoch, position).num_steps == 0:
            epoch, position = epoch + 1, 0
        if position and (problem := self._layout(epoch, position).explain_problem()):
            raise StateError(
                f"what is left of the epoch cannot be dealt out: {problem}, or leave it "
                f"out: sampler.set_epoch({epoch + 1})"
            )
        self._epoch, self._position = epoch, position

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the ids of the samples of an epoch, over all ranks, in their order, int64 (n,).

        n is the number of samples of the epoch. An id occurs as often as the epoch has its sample:
        several times with `repeats`, for instance, or not at all.
        """
        rows, count = self._rows(epoch)
        order = order_epoch(
            self.selection, count, rows, seed=self.seed, epoch=epoch, shuffle=self.shuffle
        )
        return order if rows is None else rows[order]

    def _rows(self, epoch: int) -> tuple[NDArray[np.int64] | None, int]:
        """Return the rows that an epoch can choose from, or None for all, and their number."""
        if self.population is None:
            return self.selection.rows, self.count
        rows = self.population.ids(epoch, self._problem)
        return rows, len(rows)

    def _size(self, epoch: int) -> int:
        """Return how many samples an epoch has."""
        return self.selection.epoch_size_of(self._rows(epoch)[1])

    def _size_at(self, state: dict[str, Any]) -> int:
        """Return how many samples a state's epoch has; may return 0 for one at its beginning.

        The state of a growing data set has a number, its generation, from which the population
        restores the samples of that epoch.
        """
        epoch, generation = state["epoch"], state.get("generation")
        if self.population is None or type(epoch) is not int or type(generation) is not int:
            return self.selection.epoch_size_of(self.count)
        self.population.resume(epoch, generation)
        if state["position"] == 0:
            return 0  # an epoch that has not begun may have to wait for its samples
        return self._size(epoch)

    def _problem(self, count: int) -> str:
        """Explain why `count` samples cannot be divided into batches; "" if they can."""
        return self._divide(self.selection.epoch_size_of(count)).explain_problem()

    def _layout(self, epoch: int, position: int) -> EpochLayout:
        return self._divide(self._size(epoch) - position)

    def _divide(self, total: int) -> EpochLayout:
        # Neighbours are repeats of one sample: they go to different ranks, as in torchvision's
        # RASampler.
        is_dealt = self.selection.repeats > 1
        return EpochLayout(total, self.batch_size, self.world_size, self.last_batch, is_dealt)

    def _plans(self, epoch: int, position: int) -> Iterator[Plan]:
        order, layout = self.order(epoch), self._layout(epoch, position)
        earlier = count_earlier(order) if self.selection.may_repeat else None
        last = layout.num_steps - 1
        at_once = max(1, min(_MADE_AT_ONCE, _MAX_ROWS // self.batch_size))
        for first in range(0, last + 1, at_once):
            steps = range(first, min(first + at_once, last + 1))
            slots = [(position + layout.positions(step, self.rank)) % len(order) for step in steps]
            repeats = None if earlier is None else [earlier[at] for at in slots]
            siblings = Siblings([order[at] for at in slots], repeats)
            yield from [
                Plan(
                    epoch,
                    siblings.batches[number],
                    position + layout.end(step),
                    step == last,
                    repeats=None if repeats is None else repeats[number],
                    siblings=siblings,
                    number=number,
                )
                for number, step in enumerate(steps)
            ]
