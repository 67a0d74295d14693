"""Connects to one or several servers; checks that their configs agree and their shards differ."""

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from gpupipe.config import Config, LoaderConfig, Shard
from gpupipe.engines.last_steps import BatchFinisher
from gpupipe.engines.remote.connection import Connection
from gpupipe.engines.remote.description import RemoteDataset, parse_description
from gpupipe.engines.remote.session import ConnectionOptions
from gpupipe.errors import ServerError, warn
from gpupipe.protocol.messages import SessionOpened
from gpupipe.runtime.devices import resolve
from gpupipe.runtime.installation import import_torchvision
from gpupipe.sampling.sampler import Sampler


@dataclass(frozen=True)
class ConnectedServer:
    """A server with which a session is open.

    Attributes:
        connection: The connection to the server.
        answer: The server's answer to the opening of the session.
        dataset: The data set that the server serves.
        finisher: Runs the steps that the server leaves to this client, and copies batches to the
            client's device.
    """

    connection: Connection
    answer: SessionOpened
    dataset: RemoteDataset
    finisher: BatchFinisher

    @property
    def address(self) -> str:
        """The address of the server."""
        return self.connection.options.address


def connect_servers(
    loader: LoaderConfig, patience: float, own: Config | None, exits: ExitStack
) -> tuple[list[ConnectedServer], Config]:
    """Connect to servers, and open a session with each.

    Args:
        loader: This client's settings; `loader.server` names the servers.
        patience: A call fails after this many seconds without a message from a server.
        own: This client's config, whose pipeline and batch stage must equal those of the servers.
            None: nothing is compared, and `format`, `ids`, `targets` and `pad_to` are the
            server's, unless `loader` sets them.
        exits: The caller's stack. The connections are added to it, so that it closes them if an
            error occurs here or in the caller.

    Returns:
        The servers in the order of their ranks, and the config that they serve, with the first
        server's shard.

    Raises:
        DeviceError: If the device is not available.
        ServerError: If a server cannot be reached, if the servers have different configs or equal
            shards, or if they serve another pipeline or batch stage than `own`.
    """
    gpu = resolve(loader.device)
    addresses = loader.server or ()
    # Several servers have one shard each, and this client reads all of them.
    shard = Shard() if len(addresses) > 1 else loader.shard
    ranks, keys = (shard.rank, shard.world_size), (loader.key, loader.server_key)
    transport = loader.hwm, loader.transport
    connections = []
    for address in addresses:
        options = ConnectionOptions(address, *ranks, *transport, *keys, patience, gpu)
        connections.append(exits.enter_context(closing(Connection(options))))
    servers = []
    for connection in connections:
        answer = connection.open()
        address = connection.options.address
        dataset = parse_description(answer.description, loader, address, follow=own is None)
        finisher = BatchFinisher(dataset.tail, gpu)
        servers.append(ConnectedServer(connection, answer, dataset, finisher))
    servers.sort(key=lambda server: server.answer.rank)
    _check_agree(servers)
    first = servers[0]
    if own is not None:
        _check_own(own, first.dataset.config, first.address)
    if first.dataset.tail.pipeline.entries:
        # The import takes seconds. In the thread of a connection it would delay the heartbeats.
        import_torchvision()
    for server in servers:
        _warn_of_missed_batches(server)
    config = first.dataset.config
    shard = Shard(rank=first.answer.rank, world_size=first.answer.world_size)
    loader = config.loader.model_copy(update={"shard": shard})
    return servers, replace(config, loader=loader, name=own.name if own else config.name)


def _warn_of_missed_batches(server: ConnectedServer) -> None:
    """Warn if this client joins in the middle of an epoch, and so misses batches."""
    late, epoch = server.answer.joined, server.answer.epoch
    if late is None:
        return
    missed = f"{late.steps - late.left:,} of the {late.steps:,} batches of epoch {epoch}"
    if late.readers:
        warn(
            f"{server.address} shares its batches, and {missed} went to others before this client "
            f"came ({'; '.join(late.readers)}). "
            f"It gets its share of the {late.left:,} that are left, and of every epoch after that. "
            "Serve with --mode broadcast to give all batches to every client, or with "
            "--clients N to ranks",
            UserWarning,
        )
    else:
        warn(
            f"{server.address} resumes: {missed} were consumed before, so this client gets "
            f"{late.left:,} of it, and then whole epochs",
            UserWarning,
        )


def _check_agree(servers: list[ConnectedServer]) -> None:
    """Raise ServerError if N servers have different configs, or are not the ranks 0 to N - 1."""
    count = len(servers)
    if count == 1:
        return
    jobs = {
        (
            dataset.index.fingerprint,
            dataset.config.pipeline.fingerprint,
            dataset.config.batch.fingerprint,
            dataset.config.loader.model_dump_json(include={*Sampler.settings} - {"subset"}),
            dataset.selection.settings.get("subset"),
        )
        for dataset in (server.dataset for server in servers)
    }
    if len(jobs) > 1:
        raise ServerError(
            f"{' and '.join(server.address for server in servers)} serve different data, "
            "pipelines, batches or seeds: give all the same config"
        )
    ranks = [(server.answer.rank, server.answer.world_size) for server in servers]
    if ranks != [(n, count) for n in range(count)]:
        each = ", ".join(
            f"{server.address}: rank {rank} of {world_size}"
            for server, (rank, world_size) in zip(servers, ranks, strict=True)
        )
        raise ServerError(
            f"{count} servers must each have another shard of the samples ({each}): "
            f"serve with shard='{{rank: 0, world_size: {count}}}' and so on"
        )


def _check_own(own: Config, served: Config, address: str) -> None:
    """Raise ServerError if `own` and `served` differ in their pipeline or batch stage."""
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
