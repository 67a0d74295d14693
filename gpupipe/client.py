"""connect(): a Loader over a data processing server, without a config; and Fuel's way to say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.complaints import complaints
from gpupipe.config import LoaderConfig
from gpupipe.errors import ConfigError, ServerError, did_you_mean
from gpupipe.loader import Loader, remote
from gpupipe.yamlfile import Document


def connect(
    server: str | Sequence[str], *, hwm: int = 10, device: str = "auto", transport: str = "auto", key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None, format: str = "dict", ids: bool = False, patience: float = 60.0, **more: Any,
) -> Loader:  # fmt: skip
    """A Loader over what a server serves: "tcp://host:5557", or several that have a shard each.

    hwm: batches that the server sends ahead. device: where batches go: auto, cpu, gpu or gpu:N. transport: auto, shm or tcp. key, server_key: files, for a
    server that has keys. patience: seconds without a word from the server until it counts as gone. more: `shard`.
    What is served (data, steps, batch size, seed) is the server's to say. Raises ConfigError, DeviceError, ServerError.

        with gpupipe.connect("tcp://localhost:5557") as loader:
            for batch in loader:
                batch["image"], batch["label"]
    """
    given = {"engine": "remote", "server": server, "hwm": hwm, "device": device, "transport": transport, "key": key, "server_key": server_key}
    given |= {"format": format, "ids": ids, **more}
    try:
        options = LoaderConfig.model_validate(given)
    except pydantic.ValidationError as e:
        raise ConfigError(complaints(e, LoaderConfig, Document("connect()", given))) from None
    return remote(options, patience=patience)


class ServerDataStream:
    """Fuel's data stream over a server: epochs of tuples of NumPy arrays, a tuple for every batch.

    sources: which fields of a batch, in which order, such as ("image", "label").

        stream = ServerDataStream(("image", "label"), port=5557)
        for images, labels in stream.get_epoch_iterator(): ...
    """

    def __init__(self, sources: Sequence[str], host: str = "localhost", port: int = 5557, hwm: int = 10) -> None:
        """Raises ServerError."""
        self.sources = tuple(sources)
        self._loader = connect(f"tcp://{host}:{port}", hwm=hwm, device="cpu")

    def get_epoch_iterator(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """The next epoch. Raises ServerError where the server has no such field."""
        for batch in self._loader:
            for name in self.sources:
                if name not in batch:
                    raise ServerError(f"the server's batches have no field '{name}'{did_you_mean(name, batch)}")
            yield tuple(np.asarray(batch[name]) for name in self.sources)

    def close(self) -> None:
        """End the connection."""
        self._loader.close()
