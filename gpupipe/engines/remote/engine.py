"""The remote engine: batches that a data processing server makes, or several, each of which has its
shard.

1. The order is the servers'. An iteration begins where the loader's sampler stands; what comes back
   says which plan it is.
2. With several servers batches come from each in turn, which is the order in which the ranks of one
   global step follow one another.
3. A batch counts as consumed when the loader says so: not when it is prepared here.
4. What is left to the client (`ship: uint8`), and the way to the GPU, are done in the connection's
   thread, on a stream of their own. The thread waits for that stream, so that a batch is there
   before the consumer gets it, and the memory that it was received into can be used again. In the
   consumer's thread the batch is recorded on the consumer's stream, so that its memory lasts as
   long as the kernels that are queued there.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import ref

import torch

from gpupipe.client.connection import Arrived, Connection
from gpupipe.client.dialing import ConnectionOptions
from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.dataset.index import Index
from gpupipe.engines.base import Batch, Engine, LoadSpec
from gpupipe.engines.remote.turns import ServerPlan, Turns
from gpupipe.engines.remote.welcome import SETTLED, Understood, understand
from gpupipe.errors import EngineError, ServerError, warn
from gpupipe.protocol.messages import Late, Welcome
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.transfer import record_stream
from gpupipe.sampling.sampler import Plan


class RemoteEngine(Engine):
    """Batches of connected servers.

    number: the GPU that they are copied to, or None; tail: the steps that are left to be done here.
    """

    name = "remote"
    settings = frozenset({"server", "hwm", "transport", "key", "server_key", *SETTLED})
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
        self._at_exit = _closing(ref(self))
        atexit.register(self._at_exit)

    @classmethod
    def on(cls, job: LoadSpec, device: str) -> RemoteEngine:
        raise EngineError(
            "a remote engine has a server: gpupipe.connect(), or loader.server beside "
            "engine: remote"
        )

    def batches(self, plans: Iterator[Plan]) -> Generator[tuple[Plan, Batch], None, None]:
        """The plans say nothing that the servers do not know: what counts is where the sampler
        stands now.
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
        """What is left of an epoch, from the server whose turn it is."""
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
                yield self._sent(arrived, turn, before, len(all_sent) == servers), arrived.batch
                before = arrived.end if turn == servers - 1 else before
            turn = (turn + 1) % servers

    def _warn_if_missed(self, expected: int, epoch: int) -> None:
        """Warn if the first batch of all is of a later epoch than the loader stands at."""
        if not self._has_received and epoch > expected:
            warn(
                f"others consumed epoch {expected} of "
                f"{self._connections[0].options.address} before this client began it, so it "
                "gets none of it: this client "
                f"goes on with its share of epoch {epoch}",
                UserWarning,
            )
        self._has_received = True

    def _sent(self, arrived: Arrived, server: int, before: int, last: bool) -> ServerPlan:
        ids = arrived.batch["id"].numpy()
        return ServerPlan(
            arrived.epoch,
            ids,
            arrived.end,
            last,
            server,
            arrived.key,
            before,
            (server + 1) % len(self._connections),
        )

    def consumed(self, plan: Plan) -> None:
        if isinstance(plan, ServerPlan):
            self._connections[plan.server].consumed(plan.key)
            if plan.last:
                self._sampler.late = None

    def reading(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        for plan, _ in self.batches(plans):
            self.consumed(plan)
            yield len(plan.ids)

    def making(self, plans: Iterator[Plan]) -> Generator[int, None, None]:
        """The same: the steps are the server's."""
        yield from self.reading(plans)

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


def _closing(engine: ref[RemoteEngine]) -> Callable[[], None]:
    def close() -> None:
        alive = engine()
        if alive is not None:
            alive.close()

    return close


@dataclass(frozen=True)
class Reached:
    """All that a Loader over servers is made of."""

    config: Config
    index: Index
    sampler: Turns
    engine: RemoteEngine


def reach(loader: LoaderConfig, patience: float, own: Config | None = None) -> Reached:
    """Connect to the servers of `loader`.

    own: the config of this side, which must mean the same work. Raises DeviceError, ServerError,
    StateError.
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
    alone = (
        len(loader.server or ()) > 1
    )  # several servers have a shard each, and this client reads all of them
    rank, world = (0, 1) if alone else (loader.shard.rank, loader.shard.world_size)
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
) -> Reached:
    welcomes = [connection.open() for connection in connections]
    found = [
        understand(w.about, loader, c.options.address)
        for w, c in zip(welcomes, connections, strict=True)
    ]
    order = sorted(range(len(found)), key=lambda n: welcomes[n].rank)
    _check_agree(
        [found[n] for n in order],
        [welcomes[n] for n in order],
        [connections[n].options.address for n in order],
    )
    first, welcome = found[order[0]], welcomes[order[0]]
    if own is not None:
        _check_own(own, first.config, connections[0].options.address)
    if first.tail:
        # it takes seconds, in which the thread of a connection could give no sign of life
        import torchvision.transforms.v2  # noqa: F401
    for finish, understood in zip(finishes, found, strict=True):
        finish.left = understood
    config = _settled(first.config, welcome, own)
    sampler = _sampler(config, first.index, [welcomes[n] for n in order])
    for connection, opened in zip(connections, welcomes, strict=True):
        if opened.late is not None:
            _warn_of_what_is_gone(connection.options.address, opened.epoch, opened.late)
    head = list(dict.fromkeys(e.key for e in config.pipeline.entries if e not in first.tail))
    engine = RemoteEngine(
        [connections[n] for n in order], sampler, number, head, [e.key for e in first.tail]
    )
    return Reached(config, first.index, sampler, engine)


def _settled(config: Config, welcome: Welcome, own: Config | None) -> Config:
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


def _warn_of_what_is_gone(address: str, epoch: int, late: Late) -> None:
    """Warn that a client is new in the middle of an epoch."""
    gone = f"{late.steps - late.left:,} of the {late.steps:,} batches of epoch {epoch}"
    if late.readers:
        warn(
            f"{address} shares its batches, and {gone} went to others before this client "
            f"came ({'; '.join(late.readers)}). "
            f"It gets its share of the {late.left:,} that are left, and of every epoch after that. "
            "Serve with --mode broadcast to give all batches to every client, or with "
            "--clients N to ranks",
            UserWarning,
        )
    else:
        warn(
            f"{address} resumes: {gone} were consumed before, so this client gets "
            f"{late.left:,} of it, and then whole epochs",
            UserWarning,
        )


def _check_agree(found: list[Understood], welcomes: list[Welcome], addresses: list[str]) -> None:
    """Raises ServerError where several servers do not each have one shard of the same work."""
    if len(found) == 1:
        return
    same = {
        (
            f.index.fingerprint,
            f.config.pipeline.fingerprint,
            f.config.loader.model_dump_json(
                include={"batch_size", "shuffle", "seed", "last_batch"}
            ),
        )
        for f in found
    }
    if len(same) > 1:
        raise ServerError(
            f"{' and '.join(addresses)} serve different data, pipelines, batches or seeds: "
            "give all the same config"
        )
    if [(w.rank, w.world) for w in welcomes] != [(n, len(found)) for n in range(len(found))]:
        each = ", ".join(
            f"{a}: rank {w.rank} of {w.world}" for a, w in zip(addresses, welcomes, strict=True)
        )
        raise ServerError(
            f"{len(found)} servers must each have another shard of the samples ({each}): "
            f"serve with shard='{{rank: 0, world_size: {len(found)}}}' and so on"
        )


def _check_own(own: Config, served: Config, address: str) -> None:
    """Raises ServerError where a config asks for other work than the server does."""
    if own.pipeline.fingerprint != served.pipeline.fingerprint:
        raise ServerError(
            f"pipeline '{own.pipeline.name}' of this config is not the one that {address} "
            f"serves ('{served.pipeline.name}'): "
            "start the server with the same config, or take what it serves with gpupipe.connect()"
        )


def _device(number: int | None) -> torch.device:
    return torch.device("cpu") if number is None else torch.device("cuda", number)


class Finish:
    """What is done to the tensors of a batch when they are here.

    number: the GPU, or None; left: what the server said, once it is known.
    """

    left: Understood | None = None

    def __init__(self, number: int | None) -> None:
        self._device = _device(number)
        # torch's
        self._stream: torch.cuda.Stream | None = None
        if number is not None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Batch:
        if self._stream is None:
            return self._done(tensors)
        with torch.cuda.stream(self._stream):
            done = self._done(copied(tensors, self._device))
        # until then the memory that was received into must not be used again; the thread of
        # training does not wait
        self._stream.synchronize()
        return done

    def _done(self, tensors: dict[str, torch.Tensor]) -> Batch:
        assert self.left is not None
        for entry in self.left.tail:
            tensors[entry.field] = entry.step.torch(tensors[entry.field], {})
        if self.left.dtype is not None:
            main = self.left.config.pipeline.main
            tensors[main] = tensors[main].to(getattr(torch, self.left.dtype))
        return tensors


def copied(tensors: dict[str, torch.Tensor], where: torch.device) -> Batch:
    """A batch on a GPU, but for its ids.

    The memory that it was received into is page-locked, and holds none of it once the copies have
    ended.
    """
    there = {
        name: tensor.to(where, non_blocking=True)
        for name, tensor in tensors.items()
        if name != "id"
    }
    return there | {"id": tensors["id"].clone()}
