"""Connects to one or several servers, and checks that they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpupipe.client.connection import Connection
from gpupipe.client.session import ConnectionOptions
from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.dataset.index import Index
from gpupipe.engines.batch_finisher import BatchFinisher
from gpupipe.engines.remote.description import RemoteDataset, parse_description
from gpupipe.engines.remote.sampler import RemoteSampler
from gpupipe.errors import ServerError, warn
from gpupipe.protocol.messages import PassInProgress, SessionOpened
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.installation import import_torchvision
from gpupipe.sampling.sampler import Sampler


@dataclass(frozen=True)
class ConnectedServers:
    """What a loader over connected servers is made of.

    Attributes:
        connections: One open connection for each server, in the order of their ranks.
        finishers: For each connection, what finishes its batches: runs the steps of this client,
            and copies to its device.
        config: The config that the servers serve, with the server's shard.
        index: The samples that the servers serve.
        sampler: The position in the order of the servers.
        head: Names of the steps that the servers run.
        tail: Names of the steps that are left to this client.
    """

    connections: Sequence[Connection]
    finishers: Sequence[BatchFinisher]
    config: Config
    index: Index
    sampler: RemoteSampler
    head: Sequence[str]
    tail: Sequence[str]


def connect_servers(
    loader: LoaderConfig, patience: float, own: Config | None = None
) -> ConnectedServers:
    """Connect to servers, and open a session with each.

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
    gpu = resolve(loader.device)
    connections: list[Connection] = []
    try:
        for address in loader.server or ():
            connections.append(Connection(_options(loader, address, patience, gpu)))
        return _open(connections, loader, gpu, own)
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
    keys = loader.key, loader.server_key
    return ConnectionOptions(
        address, rank, world, loader.hwm, loader.transport, *keys, patience, gpu
    )


def _open(
    connections: list[Connection], loader: LoaderConfig, gpu: int | None, own: Config | None
) -> ConnectedServers:
    answers = [connection.open() for connection in connections]
    order = sorted(range(len(answers)), key=lambda n: answers[n].rank)
    connections, answers = [connections[n] for n in order], [answers[n] for n in order]
    addresses = [connection.options.address for connection in connections]
    served = [
        parse_description(answer.description, loader, address)
        for answer, address in zip(answers, addresses, strict=True)
    ]
    _check_agree(served, answers, addresses)
    first = served[0]
    if own is not None:
        _check_own(own, first.config, addresses[0])
    tail = first.pipeline_tail.at_epoch(0)
    if tail:
        # The import takes seconds. In the thread of a connection it would delay the heartbeats.
        import_torchvision()
    config = _with_server_shard(first.config, answers[0], own)
    for answer, address in zip(answers, addresses, strict=True):
        if answer.joined is not None:
            _warn_of_missed_batches(address, answer.epoch, answer.joined)
    return ConnectedServers(
        connections=connections,
        finishers=[BatchFinisher(dataset.pipeline_tail, gpu) for dataset in served],
        config=config,
        index=first.index,
        sampler=_sampler(config, first, answers),
        head=list(dict.fromkeys(e.key for e in config.pipeline.entries if e not in tail)),
        tail=list(dict.fromkeys(e.key for e in tail)),
    )


def _with_server_shard(config: Config, answer: SessionOpened, own: Config | None) -> Config:
    loader = config.loader.model_copy(
        update={"shard": Shard(rank=answer.rank, world_size=answer.world_size)}
    )
    return replace(config, loader=loader, name=own.name if own else config.name)


def _sampler(config: Config, served: RemoteDataset, answers: list[SessionOpened]) -> RemoteSampler:
    options, first = config.loader, answers[0]
    return RemoteSampler(
        served.count,
        options.batch_size,
        shuffle=options.shuffle,
        seed=options.seed,
        last_batch=options.last_batch,
        shard=options.shard,
        start=(first.epoch, first.position),
        joined=[answer.joined for answer in answers],
        selection=served.selection,
    )


def _warn_of_missed_batches(address: str, epoch: int, late: PassInProgress) -> None:
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


def _check_agree(
    served: list[RemoteDataset], answers: list[SessionOpened], addresses: list[str]
) -> None:
    """Raise ServerError unless several servers have one shard each of the same work."""
    if len(served) == 1:
        return
    works = {
        (
            f.index.fingerprint,
            f.config.pipeline.fingerprint,
            f.config.batch.fingerprint,
            f.config.loader.model_dump_json(include={*Sampler.settings} - {"subset"}),
            f.selection.settings.get("subset"),
        )
        for f in served
    }
    if len(works) > 1:
        raise ServerError(
            f"{' and '.join(addresses)} serve different data, pipelines, batches or seeds: "
            "give all the same config"
        )
    if [(a.rank, a.world_size) for a in answers] != [(n, len(served)) for n in range(len(served))]:
        each = ", ".join(
            f"{address}: rank {a.rank} of {a.world_size}"
            for address, a in zip(addresses, answers, strict=True)
        )
        raise ServerError(
            f"{len(served)} servers must each have another shard of the samples ({each}): "
            f"serve with shard='{{rank: 0, world_size: {len(served)}}}' and so on"
        )


def _check_own(own: Config, served: Config, address: str) -> None:
    """Raise ServerError if the pipeline or the batch stage of a config is not the server's."""
    if own.pipeline.fingerprint != served.pipeline.fingerprint:
        raise ServerError(
            f"pipeline '{own.pipeline.name}' of this config is not the one that {address} "
            f"serves ('{served.pipeline.name}'): "
            "start the server with the same config, or take what it serves with gpupipe.connect()"
        )
    if own.batch.fingerprint != served.batch.fingerprint:
        raise ServerError(
            f"the steps under 'batch:' of this config ({_list_steps(own)}) are not those that "
            f"{address} serves ({_list_steps(served)}): start the server with the same config, or "
            "take what it serves with gpupipe.connect()"
        )


def _list_steps(config: Config) -> str:
    return ", ".join(str(step) for step in config.batch.as_steps()) or "none"
