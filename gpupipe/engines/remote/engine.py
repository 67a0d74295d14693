"""The remote engine: delivers batches that one or several data processing servers make.

1. The servers decide the order. An iteration starts at the position of the loader's sampler, and
   each batch says which plan it belongs to.
2. Several servers have one shard each. Their batches come in turn, in the order of the ranks within
   a global step.
3. A batch is consumed when the loader calls mark_consumed(), not when it is received.
4. The connection's thread runs the steps that the server leaves to the client (`ship: uint8`), and
   copies the batch to the GPU, on a CUDA stream of its own (batch_finisher.py). It then waits for
   that stream. So the batch is complete before the consumer gets it, and the receive buffer can be
   used again.
5. The consumer's thread records each batch on the consumer's stream, so that its memory is not
   freed before the kernels that are queued there have run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from gpupipe.client.iteration import ReceivedBatch
from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, BatchStream, EngineTraits
from gpupipe.engines.batch_finisher import BatchFinisher
from gpupipe.engines.remote.connecting import ConnectedServer, connect_servers
from gpupipe.engines.remote.description import SERVER_SETTINGS
from gpupipe.engines.remote.sampler import RemoteSampler, ServerBatch
from gpupipe.errors import warn
from gpupipe.runtime.exit_handler import ExitHandler
from gpupipe.runtime.transfer import record_stream
from gpupipe.sampling.sampler import Plan, Sampler


class RemoteEngine(BatchStream):
    """Delivers the batches of connected servers.

    Args:
        servers: The connected servers, in the order of their ranks. The engine closes their
            connections.
        sampler: The position in their order.
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
    ) -> tuple[RemoteEngine, Config, Index, Sampler]:
        """Connect to servers: see `gpupipe.loading.assembly.Connects`."""
        servers, config, sampler = connect_servers(loader, patience, own)
        return cls(servers, sampler), config, servers[0].dataset.index, sampler

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield batches from the sampler's position on; the servers make their plans themselves.

        If the iteration starts within a step, the servers that have delivered their batch of that
        step start after it.
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
        """Yield the rest of an epoch.

        Args:
            before: Samples of the epoch that all servers delivered before this step.
            turn: Number of the server whose batch comes first.
        """
        servers = len(self._servers)
        going, all_sent = set(range(servers)), set[int]()
        while going:
            received = self._servers[turn].connection.next() if turn in going else None
            if received is None:
                going.discard(turn)
            else:
                all_sent |= {turn} if received.is_last else set()
                if self._torch_device.type == "cuda":
                    record_stream(received.batch, torch.cuda.current_stream(self._torch_device))
                yield self._plan(received, turn, before, len(all_sent) == servers), received.batch
                before = received.end if turn == servers - 1 else before
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

    def _plan(self, received: ReceivedBatch, server: int, before: int, last: bool) -> Plan:
        tag = ServerBatch(server, received.key, before, (server + 1) % len(self._servers))
        return Plan(received.epoch, received.batch["id"].numpy(), received.end, last, tag)

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
    """Finish a batch that the server planned."""
    return finisher(tensors, Plan(epoch, tensors["id"].numpy(), 0, last=False))
