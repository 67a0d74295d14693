"""The remote engine and its sampler: deliver batches from one or several data processing servers.

1. The servers decide the order. An iteration starts at the position of the loader's sampler, and
   the client makes the plan of each batch from the ids and the position that the server sends.
2. Several servers have one shard each. In each global step, their batches come in the order of the
   ranks.
3. A batch is consumed when the loader calls mark_consumed(), not when it is received.
4. The connection's thread runs the steps that the server leaves to the client (`ship: uint8`), and
   copies the batch to the GPU, on a separate CUDA stream (last_steps.py). The thread then waits
   for that stream. So the batch is complete before the consumer gets it, and the receive buffer can
   be used again.
5. The consumer's thread records each batch on the consumer's stream, so that its memory is not
   freed before the kernels that are queued there have run.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, BatchStream, EngineTraits
from gpupipe.engines.last_steps import BatchFinisher
from gpupipe.engines.remote.connecting import ConnectedServer, connect_servers
from gpupipe.engines.remote.description import SERVER_SETTINGS
from gpupipe.errors import ServerError, StateError, warn
from gpupipe.protocol.messages import Key, SessionOpened
from gpupipe.runtime.memory import record_stream
from gpupipe.runtime.process import ExitHandler
from gpupipe.sampling.sampler import Plan, Sampler
from gpupipe.sampling.selection import Selection


@dataclass(frozen=True)
class ServerBatch:
    """Says which server a batch came from. It is the `tag` of the batch's plan.

    Attributes:
        server: Number of the server, from 0, in the order of the ranks.
        key: The protocol's key of the batch.
        before: How many samples of the epoch all servers together delivered before this step.
        ahead: How many servers have delivered their batch of this step, including this batch; 0 if
            all have.
    """

    server: int
    key: Key
    before: int
    ahead: int


class RemoteSampler(Sampler):
    """The sampler of a loader that takes batches from several servers in turn, or from one.

    Args:
        count: The number of samples that the servers use.
        options: The settings of the loader that the servers decide.
        selection: Which samples an epoch has, and how often. Its `rows` and `weights` are None
            here, as only the servers have them.
        answers: Each server's answer to the opening of the session: its shard, its position, and
            how much of the epoch is left.

    Attributes:
        servers: Number of servers.
        ahead: How many servers have delivered their batch of the current step; 0 between two steps.
        batches_left: How many batches the first iteration has, if this client joins in the middle
            of an epoch. None otherwise, and after that iteration.
        is_explicit: Whether the user chose the position of the next iteration, with set_epoch() or
            load_state().

    Raises:
        StateError: If the servers' position is not valid here.
    """

    def __init__(
        self,
        count: int,
        options: LoaderConfig,
        selection: Selection,
        answers: Sequence[SessionOpened],
    ) -> None:
        super().__init__(
            count,
            options.batch_size,
            shuffle=options.shuffle,
            seed=options.seed,
            last_batch=options.last_batch,
            rank=answers[0].rank,
            world_size=answers[0].world_size,
            selection=selection,
        )
        self.servers, self.ahead = len(answers), 0
        self.batches_left: int | None = None
        self._has_begun = False
        start = {"epoch": answers[0].epoch, "position": answers[0].position}
        self.load_state(self.state() | start)
        self.is_explicit = False
        joined = [answer.joined for answer in answers]
        if any(joined):
            whole = super().left
            self.batches_left = sum(late.left if late else whole for late in joined)

    def __len__(self) -> int:
        whole = super().__len__() * self.servers
        return whole if self.batches_left is None else self.batches_left

    @property
    def left(self) -> int:
        if self.batches_left is not None:
            return self.batches_left
        return super().left * self.servers - self.ahead

    def order(self, epoch: int) -> NDArray[np.int64]:
        for setting in ("weights", "subset"):
            if setting in self.selection.settings:
                raise ServerError(
                    f"the order is on the server alone, because of loader.{setting} there: set "
                    "loader.ids=true, and each batch has the ids of its samples"
                )
        return super().order(epoch)

    def set_epoch(self, epoch: int) -> None:
        before = self.epoch
        super().set_epoch(epoch)
        if self.epoch != before:
            self.ahead = 0
        if self.epoch != before or self.batches_left is not None:
            self.is_explicit, self.batches_left = True, None

    def begin(self) -> Iterator[Plan]:
        self.ahead, self.is_explicit = 0, False
        if self._has_begun:
            self.batches_left = None
        self._has_begun = True
        return super().begin()

    def state_after(self, plan: Plan) -> dict[str, Any]:
        tag = plan.tag
        if not isinstance(tag, ServerBatch) or plan.last or not tag.ahead:
            return super().state_after(plan) | self._turn(0)
        return self._state(plan.epoch, tag.before) | self._turn(tag.ahead)

    def state(self) -> dict[str, Any]:
        return super().state() | self._turn(self.ahead)

    def _turn(self, ahead: int) -> dict[str, Any]:
        return {"ahead": ahead} if self.servers > 1 else {}

    def load_state(self, state: dict[str, Any], strict: bool = True) -> None:
        ahead = state.get("ahead", 0)
        if type(ahead) is not int or not 0 <= ahead < self.servers:
            raise StateError(
                f"the state stands between the servers of one step ({ahead} have had their "
                f"turn), and this loader has {self.servers}"
            )
        super().load_state(state, strict)
        self.ahead = ahead
        self.is_explicit, self.batches_left = True, None


class RemoteEngine(BatchStream):
    """Delivers the batches of connected servers.

    Args:
        servers: The connected servers, in the order of their ranks. The engine closes their
            connections.
        sampler: Keeps the position in the order of the servers' batches.
    """

    name = "remote"
    settings = frozenset({"server", "hwm", "transport", "key", "server_key", *SERVER_SETTINGS})
    traits = EngineTraits(
        unit="server",
        overruled_settings=frozenset(SERVER_SETTINGS),
        comparison_note="the server has cores of its own, which are not held to those of the other "
        "sides, and whose CPU time is not counted",
    )

    def __init__(self, servers: Sequence[ConnectedServer], sampler: RemoteSampler) -> None:
        self._servers, self._sampler = servers, sampler
        self.device = servers[0].finisher.device
        self._torch_device = servers[0].finisher.torch_device
        self.traits = self.traits.with_counts(
            len(servers), sum(server.connection.options.hwm for server in servers)
        )
        self._has_received = False
        self._at_exit = ExitHandler(self.close)

    @classmethod
    def contestants(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        return {"server": {}}

    @classmethod
    def connect(
        cls, loader: LoaderConfig, patience: float, own: Config | None
    ) -> "tuple[RemoteEngine, Config, Index, Sampler]":
        """Connect to servers, and open a session with each.

        Returns the engine, the servers' config and index, and the sampler. Implements
        gpupipe.loading.assembly.Connects.
        """
        with ExitStack() as exits:
            servers, config = connect_servers(loader, patience, own, exits)
            dataset, answers = servers[0].dataset, [server.answer for server in servers]
            sampler = RemoteSampler(dataset.count, config.loader, dataset.selection, answers)
            exits.pop_all()
            return cls(servers, sampler), config, dataset.index, sampler

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield batches from the sampler's position on.

        The servers make the plans, so this ignores `plans`. If the iteration starts within a step,
        the servers that have delivered their batch of that step start with the next step.
        """
        ahead = self._sampler.ahead
        end = self._sampler.end_of_step if ahead else 0
        return self._all_epochs(
            self._sampler.epoch, self._sampler.position, ahead, end, self._sampler.is_explicit
        )

    def _all_epochs(
        self, epoch: int, position: int, ahead: int, end: int, is_explicit: bool
    ) -> Generator[tuple[Plan, Batch], None, None]:
        try:
            while True:
                for number, server in enumerate(self._servers):
                    start = end if number < ahead else position
                    finish = partial(_finish, server.finisher)
                    server.connection.start_iteration(epoch, start, finish, is_explicit)
                for plan, batch in self._epoch(position, ahead):
                    self._warn_if_missed(epoch, plan.epoch)
                    yield plan, batch
                self._sampler.batches_left, is_explicit = None, False
                epoch = max(server.connection.epoch for server in self._servers)
                position = ahead = 0
        finally:
            for server in self._servers:
                server.connection.end_iteration()

    def _epoch(self, before: int, turn: int) -> Iterator[tuple[Plan, Batch]]:
        """Yield the remaining plans and batches of an epoch.

        Args:
            before: How many samples of the epoch all servers delivered before the first step.
            turn: Number of the server whose batch comes first.
        """
        servers = len(self._servers)
        going, all_sent = set(range(servers)), set[int]()
        while going:
            received = self._servers[turn].connection.next() if turn in going else None
            if received is None:
                going.discard(turn)
            else:
                head, batch = received
                all_sent |= {turn} if head.is_last else set()
                if self._torch_device.type == "cuda":
                    record_stream(batch, torch.cuda.current_stream(self._torch_device))
                tag = ServerBatch(turn, head.key, before, (turn + 1) % servers)
                ids, is_last = batch["id"].numpy(), len(all_sent) == servers
                yield Plan(head.epoch, ids, head.end, is_last, tag), batch
                before = head.end if turn == servers - 1 else before
            turn = (turn + 1) % servers

    def _warn_if_missed(self, expected: int, epoch: int) -> None:
        """Warn if the very first batch belongs to a later epoch than the loader expects."""
        if not self._has_received and epoch > expected:
            warn(
                f"others consumed epoch {expected} of {self._servers[0].address} before this "
                "client began it, so it gets none of it: this client goes on with its share of "
                f"epoch {epoch}",
                UserWarning,
            )
        self._has_received = True

    def mark_consumed(self, plan: Plan) -> None:
        if isinstance(plan.tag, ServerBatch):
            self._servers[plan.tag.server].connection.acknowledge(plan.tag.key)
            if plan.last:
                self._sampler.batches_left = None

    def close(self) -> None:
        self._at_exit.cancel()
        for server in self._servers:
            server.connection.close()


def _finish(finisher: BatchFinisher, tensors: dict[str, torch.Tensor], epoch: int) -> Batch:
    """Run the client's steps on a received batch, and copy it to the client's device."""
    return finisher(tensors, Plan(epoch, tensors["id"].numpy(), 0, last=False))
