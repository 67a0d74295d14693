"""Connects to data processing servers, which read the data and decide the order."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from gpupipe.config import Config, LoaderConfig
from gpupipe.dataset.index import Index
from gpupipe.engines.base import BatchStream
from gpupipe.errors import EngineError
from gpupipe.loading.assembly import LoaderParts, check_batch_stage, refuse_in_worker, resolve_shard
from gpupipe.sampling.sampler import Sampler


@runtime_checkable
class Connects(Protocol):
    """The class of an engine that connects to servers in place of reading the data."""

    def connect(
        self, loader: LoaderConfig, patience: float, own: Config | None
    ) -> tuple[BatchStream, Config, Index, Sampler]:
        """Connect to servers, and open a session with each. A class method.

        Args:
            loader: Settings of this side, which name the servers.
            patience: Seconds without a message from a server after which a call fails.
            own: A config whose pipeline must be the one of the servers; None: no check.

        Returns:
            The engine, the config of the servers with the shard of this side, the samples that they
            serve, and the position in their order.

        Raises:
            DeviceError: The device is not available.
            ServerError: A server cannot be reached, or serves something else.
        """


def connect(
    engine_type: type[BatchStream],
    options: LoaderConfig,
    own: Config | None = None,
    patience: float = 60.0,
) -> LoaderParts:
    """Connect to servers, and return the parts of a loader over them.

    Args:
        engine_type: The engine that connects.
        options: Settings of this side, which name the servers.
        own: A config whose pipeline must be the one of the servers; None: no check.
        patience: Seconds without a message from a server after which a call fails.

    Raises:
        ConfigError: If the labels of the servers cannot be mixed.
        DeviceError: If the device is not available.
        EngineError: If the engine reads the data itself.
        ServerError: If a server cannot be reached, or serves something else.
    """
    refuse_in_worker()
    if not isinstance(engine_type, Connects):
        raise EngineError(f"engine {engine_type.name} reads the data itself, and has no server")
    shard = resolve_shard(options)
    engine, config, index, sampler = engine_type.connect(shard, patience, own)
    check_batch_stage(config, index, None)
    return LoaderParts(config, index, sampler, engine)
