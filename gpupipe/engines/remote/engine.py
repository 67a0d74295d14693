"""The remote engine: delivers batches that one or several data processing servers make.

1. The servers decide the order. An iteration starts at the position of the loader's sampler, and
   each batch says which plan it belongs to.
2. Several servers have one shard each. Their batches come in turn, in the order of the ranks within
   a global step.
3. A batch is consumed when the loader calls mark_consumed(), not when it is received.
4. The connection's thread runs the steps that the server leaves to the client (`ship: uint8`), and
   copies the batch to the GPU, on a CUDA stream of its own. It then waits for that stream. So the
   batch is complete before the consumer gets it, and the receive buffer can be used again.
5. The consumer's thread records each batch on the consumer's stream, so that its memory is not
   freed before the kernels that are queued there have run.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

import torch

from gpupipe.client.connection import Arrived, Connection
from gpupipe.client.dialing import ConnectionOptions
from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, Engine, LoaderParts, LoadSpec
from gpupipe.engines.remote.turns import ServerBatch, Turns
from gpupipe.engines.remote.welcome import SETTLED, Understood, understand
from gpupipe.errors import EngineError, ServerError, warn
from gpupipe.protocol.messages import Late, Welcome
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.transfer import record_stream
from gpupipe.sampling.sampler import Plan


class RemoteEngine(Engine):
    """Delivers the batches of connected servers.

    Args:
        connections: One open connection for each server, in the order of their ranks.
        sampler: The position in the order of the servers.
        number: Number of the GPU to which batches are copied; None for the CPU.
        head: Names of the steps that the servers run.
        tail: Names of the steps that are left to this client.
    """

    name = "remote"
    settings = frozenset({"server", "hwm", "transport", "key", "server_key", *SETTLED})
    overruled_settings = frozenset(SETTLED)
    reads_data = False
    unit = "server"

    def __init__(
        self,
        connections: Sequence[Connection],
        sampler: Turns,
        number: int | None,
        head: Sequence[str],
        tail: Sequence[str],
    ) -> None:
        self._connections, self._sampler = connections, sampler
        self.device = "cpu" if number is None else f"gpu:{number}"
        self._torch_device = _device(number)
        self._steps = tuple(head), tuple(tail)
        self.parallelism = len(connections)
        self.batches_ahead = sum(connection.options.hwm for connection in connections)
        self._has_received = False
        self._at_exit = _closer(ref(self))
        atexit.register(self._at_exit)

    @classmethod
    def on(cls, job: LoadSpec, device: str) -> RemoteEngine:
        raise EngineError(
            "a remote engine has a server: gpupipe.connect(), or loader.server beside "
            "engine: remote"
        )

    @classmethod
    def sides(cls, gpus: int, workers: Sequence[int]) -> dict[str, dict[str, Any]]:
        return {"server": {}}

    @classmethod
    def connect(cls, loader: LoaderConfig, patience: float, own: Config | None) -> LoaderParts:
        return reach(loader, patience, own)

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """Yield batches from the sampler's position on; the servers make their plans themselves.

        The engine only takes the first of `plans`, and only if the iteration starts within a step:
        its end is the position of the servers that have delivered their batch of that step.
        """
        ahead = self._sampler.ahead
        end = next(plans).end if ahead else 0
        return self._endless(
            self._sampler.epoch, self._sampler.position, ahead, end, self._sampler.asked
        )

    def _endless(
        self, epoch: int, position: int, ahead: int, end: int, asked: bool
    ) -> Generator[tuple[Plan, Batch], None, None]:
        try:
            while True:
                for number, connection in enumerate(self._connections):
                    connection.begin(epoch, end if number < ahead else position, asked)
                for plan, batch in self._epoch(position, ahead):
                    self._warn_if_missed(epoch, plan.epoch)
                    yield plan, batch
                self._sampler.late, asked = None, False
                epoch, position, ahead = (
                    max(connection.epoch for connection in self._connections),
                    0,
                    0,
                )
        finally:
            for connection in self._connections:
                connection.stop()

    def _epoch(self, before: int, turn: int) -> Iterator[tuple[Plan, Batch]]:
        """Yield the rest of an epoch.

        Args:
            before: Samples of the epoch that all servers delivered before this step.
            turn: Number of the server whose batch comes first.
        """
        servers = len(self._connections)
        going, all_sent = set(range(servers)), set[int]()
        while going:
            arrived = self._connections[turn].next() if turn in going else None
            if arrived is None:
                going.discard(turn)
            else:
                all_sent |= {turn} if arrived.last else set()
                if self._torch_device.type == "cuda":
                    record_stream(arrived.batch, torch.cuda.current_stream(self._torch_device))
                yield self._plan(arrived, turn, before, len(all_sent) == servers), arrived.batch
                before = arrived.end if turn == servers - 1 else before
            turn = (turn + 1) % servers

    def _warn_if_missed(self, expected: int, epoch: int) -> None:
        """Warn if the very first batch belongs to a later epoch than the loader expects."""
        if not self._has_received and epoch > expected:
            warn(
                f"others consumed epoch {expected} of "
                f"{self._connections[0].options.address} before this client began it, so it "
                "gets none of it: this client "
                f"goes on with its share of epoch {epoch}",
                UserWarning,
            )
        self._has_received = True

    def _plan(self, arrived: Arrived, server: int, before: int, last: bool) -> Plan:
        tag = ServerBatch(server, arrived.key, before, (server + 1) % len(self._connections))
        return Plan(arrived.epoch, arrived.batch["id"].numpy(), arrived.end, last, tag)

    def mark_consumed(self, plan: Plan) -> None:
        if isinstance(plan.tag, ServerBatch):
            self._connections[plan.tag.server].consumed(plan.tag.key)
            if plan.last:
                self._sampler.late = None

    def lowering(self) -> list[tuple[str, str, tuple[str, ...]]]:
        head, tail = self._steps
        return [
            ("server", "remote", head),
            *((f"{key}.torch", self.device, (key,)) for key in tail),
        ]

    def close(self) -> None:
        atexit.unregister(self._at_exit)
        for connection in self._connections:
            connection.close()


def _closer(engine: ref[RemoteEngine]) -> Callable[[], None]:
    """Return an exit handler that closes the engine and does not keep it alive."""

    def close() -> None:
        alive = engine()
        if alive is not None:
            alive.close()

    return close


def reach(loader: LoaderConfig, patience: float, own: Config | None = None) -> LoaderParts:
    """Connect to servers, and create the parts of a loader over them.

    Args:
        loader: Settings of this side; `loader.server` names the servers.
        patience: Seconds without a message from a server after which a call fails.
        own: A config whose pipeline must be the one of the servers; None: no check.

    Raises:
        DeviceError: If the device is not available.
        ServerError: If a server cannot be reached, if servers do not fit together, or if they serve
            another pipeline than `own`.
        StateError: If the position of the servers is not valid here.
    """
    number = resolve(loader.device)
    addresses = loader.server or ()
    finishes = [Finish(number) for _ in addresses]
    connections: list[Connection] = []
    try:
        for address, finish in zip(addresses, finishes, strict=True):
            connections.append(Connection(_options(loader, address, patience, number), finish))
        return _reached(connections, finishes, loader, number, own)
    except BaseException:
        for connection in connections:
            connection.close()
        raise


def _options(
    loader: LoaderConfig, address: str, patience: float, gpu: int | None
) -> ConnectionOptions:
    # Several servers have one shard each, and this client reads all of them.
    has_all_shards = len(loader.server or ()) > 1
    rank, world = (0, 1) if has_all_shards else (loader.shard.rank, loader.shard.world_size)
    return ConnectionOptions(
        address,
        rank,
        world,
        loader.hwm,
        loader.transport,
        loader.key,
        loader.server_key,
        patience,
        gpu,
    )


def _reached(
    connections: list[Connection],
    finishes: list[Finish],
    loader: LoaderConfig,
    number: int | None,
    own: Config | None,
) -> LoaderParts:
    welcomes = [connection.open() for connection in connections]
    served = [
        understand(w.about, loader, c.options.address)
        for w, c in zip(welcomes, connections, strict=True)
    ]
    order = sorted(range(len(served)), key=lambda n: welcomes[n].rank)
    _check_agree(
        [served[n] for n in order],
        [welcomes[n] for n in order],
        [connections[n].options.address for n in order],
    )
    first, welcome = served[order[0]], welcomes[order[0]]
    if own is not None:
        _check_own(own, first.config, connections[0].options.address)
    if first.tail:
        # The import takes seconds. In the thread of a connection it would delay the heartbeats.
        import torchvision.transforms.v2  # noqa: F401
    for finish, understood in zip(finishes, served, strict=True):
        finish.left = understood
    config = _with_server_shard(first.config, welcome, own)
    sampler = _sampler(config, first.index, [welcomes[n] for n in order])
    for connection, opened in zip(connections, welcomes, strict=True):
        if opened.late is not None:
            _warn_of_missed_batches(connection.options.address, opened.epoch, opened.late)
    head = list(dict.fromkeys(e.key for e in config.pipeline.entries if e not in first.tail))
    engine = RemoteEngine(
        [connections[n] for n in order], sampler, number, head, [e.key for e in first.tail]
    )
    return LoaderParts(config, first.index, sampler, engine)


def _with_server_shard(config: Config, welcome: Welcome, own: Config | None) -> Config:
    loader = config.loader.model_copy(
        update={"shard": Shard(rank=welcome.rank, world_size=welcome.world)}
    )
    return replace(config, loader=loader, name=own.name if own else config.name)


def _sampler(config: Config, index: Index, welcomes: list[Welcome]) -> Turns:
    options, welcome = config.loader, welcomes[0]
    sampler = Turns(
        len(index),
        options.batch_size,
        shuffle=options.shuffle,
        seed=options.seed,
        last_batch=options.last_batch,
        rank=welcome.rank,
        world_size=welcome.world,
    )
    sampler.servers = len(welcomes)
    sampler.load_state(sampler.state() | {"epoch": welcome.epoch, "position": welcome.position})
    sampler.asked = False
    if any(w.late for w in welcomes):
        whole = sampler.left // len(welcomes)
        sampler.late = sum(w.late.left if w.late else whole for w in welcomes)
    return sampler


def _warn_of_missed_batches(address: str, epoch: int, late: Late) -> None:
    """Warn that a client joins in the middle of an epoch."""
    missed = f"{late.steps - late.left:,} of the {late.steps:,} batches of epoch {epoch}"
    if late.readers:
        warn(
            f"{address} shares its batches, and {missed} went to others before this client "
            f"came ({'; '.join(late.readers)}). "
            f"It gets its share of the {late.left:,} that are left, and of every epoch after that. "
            "Serve with --mode broadcast to give all batches to every client, or with "
            "--clients N to ranks",
            UserWarning,
        )
    else:
        warn(
            f"{address} resumes: {missed} were consumed before, so this client gets "
            f"{late.left:,} of it, and then whole epochs",
            UserWarning,
        )


def _check_agree(served: list[Understood], welcomes: list[Welcome], addresses: list[str]) -> None:
    """Raise ServerError unless several servers have one shard each of the same work."""
    if len(served) == 1:
        return
    works = {
        (
            f.index.fingerprint,
            f.config.pipeline.fingerprint,
            f.config.loader.model_dump_json(
                include={"batch_size", "shuffle", "seed", "last_batch"}
            ),
        )
        for f in served
    }
    if len(works) > 1:
        raise ServerError(
            f"{' and '.join(addresses)} serve different data, pipelines, batches or seeds: "
            "give all the same config"
        )
    if [(w.rank, w.world) for w in welcomes] != [(n, len(served)) for n in range(len(served))]:
        each = ", ".join(
            f"{a}: rank {w.rank} of {w.world}" for a, w in zip(addresses, welcomes, strict=True)
        )
        raise ServerError(
            f"{len(served)} servers must each have another shard of the samples ({each}): "
            f"serve with shard='{{rank: 0, world_size: {len(served)}}}' and so on"
        )


def _check_own(own: Config, served: Config, address: str) -> None:
    """Raise ServerError if the pipeline of a config is not the one of the server."""
    if own.pipeline.fingerprint != served.pipeline.fingerprint:
        raise ServerError(
            f"pipeline '{own.pipeline.name}' of this config is not the one that {address} "
            f"serves ('{served.pipeline.name}'): "
            "start the server with the same config, or take what it serves with gpupipe.connect()"
        )


def _device(number: int | None) -> torch.device:
    return torch.device("cpu") if number is None else torch.device("cuda", number)


class Finish:
    """Finishes a received batch: copies it to the device, and runs the client's steps.

    Attributes:
        left: What the server described; None until its Welcome has arrived.

    Args:
        number: Number of the GPU; None for the CPU.
    """

    left: Understood | None = None

    def __init__(self, number: int | None) -> None:
        self._device = _device(number)
        self._stream: torch.cuda.Stream | None = None
        if number is not None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Batch:
        if self._stream is None:
            return self._done(tensors)
        with torch.cuda.stream(self._stream):
            batch = self._done(copied(tensors, self._device))
        # The receive buffer can be used again only after the copies. The training thread does not
        # wait here.
        self._stream.synchronize()
        return batch

    def _done(self, tensors: dict[str, torch.Tensor]) -> Batch:
        assert self.left is not None
        for entry in self.left.tail:
            tensors[entry.field] = entry.step.torch(tensors[entry.field], {})
        if self.left.dtype is not None:
            main = self.left.config.pipeline.main
            tensors[main] = tensors[main].to(getattr(torch, self.left.dtype))
        return tensors


def copied(tensors: dict[str, torch.Tensor], where: torch.device) -> Batch:
    """Copy a batch to a GPU; its ids stay on the CPU.

    The copies are asynchronous, because the receive buffer is page-locked. After they have ended,
    no tensor of the result refers to that buffer.

    Args:
        tensors: The batch, in the receive buffer.
        where: The GPU.
    """
    on_gpu = {
        name: tensor.to(where, non_blocking=True)
        for name, tensor in tensors.items()
        if name != "id"
    }
    return on_gpu | {"id": tensors["id"].clone()}
