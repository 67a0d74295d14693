"""connect(): a Loader over a data processing server, without a config; and Fuel's way to say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.config import LoaderConfig
from gpupipe.errors import ConfigError, ServerError, did_you_mean
from gpupipe.loader import Loader, remote, warned
from gpupipe.schema.document import Document
from gpupipe.schema.validation_errors import complaints


def connect(
    server: str | Sequence[str],
    *,
    hwm: int = 10,
    device: str = "auto",
    transport: str = "auto",
    key: str | PathLike[str] | None = None,
    server_key: str | PathLike[str] | None = None,
    format: str = "dict",
    ids: bool = False,
    patience: float = 60.0,
    **more: Any,
) -> Loader:
    """A Loader over what a server serves: "tcp://host:5557", or several that have a shard each.

    hwm: batches that the server sends ahead. device: where batches go: auto, cpu, gpu or gpu:N.
    transport: auto, shm or tcp. key, server_key: files, for a server that has keys. patience:
    seconds without a word from the server until it counts as gone. more: `shard`. What is served
    (data, steps, batch size, seed) is the server's to say. Raises ConfigError, DeviceError,
    ServerError.

        with gpupipe.connect("tcp://localhost:5557") as loader:
            for batch in loader:
                batch["image"], batch["label"]
    """
    given = {
        "engine": "remote",
        "server": server,
        "hwm": hwm,
        "device": device,
        "transport": transport,
        "key": key,
        "server_key": server_key,
    }
    given |= {"format": format, "ids": ids, **more}
    try:
        options = LoaderConfig.model_validate(given)
    except pydantic.ValidationError as e:
        raise ConfigError(complaints(e, LoaderConfig, Document("connect()", given))) from None
    return warned(remote(options, patience=patience))


class ServerDataStream:
    """Fuel's data stream over a server of gpupipe: epochs of tuples of NumPy arrays.

    The arguments are those of `fuel.streams.ServerDataStream`, in its order.

    Args: sources: Fields of a batch, in the order in which they are wanted, such as ("image",
        "label"). produces_examples: False for batches, as the server sends them; True for their
        samples, one by one. host: Host of the server. port: Port of the server. hwm: Batches that
        the server sends ahead. axis_labels: Maps a source to the names of its axes. It is kept as
        an attribute, and nothing else is done with it.

    Raises:
        ServerError: The server cannot be reached, or speaks Fuel's protocol in place of gpupipe's.
        TypeError: `produces_examples` is neither True nor False.

    Example:
        >>> stream = ServerDataStream(("image", "label"), False, port=5557)
        >>> for images, labels in stream.get_epoch_iterator(): ...

    """

    def __init__(
        self,
        sources: Sequence[str],
        produces_examples: bool = False,
        host: str = "localhost",
        port: int = 5557,
        hwm: int = 10,
        axis_labels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        if not isinstance(produces_examples, bool):
            raise TypeError(
                f"produces_examples is {produces_examples!r}, but should be True or False: "
                "the arguments of ServerDataStream are Fuel's, "
                "(sources, produces_examples, host, port, hwm, axis_labels)"
            )
        self.sources = tuple(sources)
        self.produces_examples, self.axis_labels = produces_examples, axis_labels
        self._loader = connect(f"tcp://{host}:{port}", hwm=hwm, device="cpu")

    def get_epoch_iterator(self) -> Iterator[tuple[NDArray[Any], ...]]:
        """Iterate over the next epoch.

        Raises ServerError if the server's batches lack one of the sources.
        """
        for batch in self._loader:
            for name in self.sources:
                if name not in batch:
                    raise ServerError(
                        f"the server's batches have no field '{name}'{did_you_mean(name, batch)}"
                    )
            arrays = tuple(np.asarray(batch[name]) for name in self.sources)
            if self.produces_examples:
                yield from zip(*arrays, strict=True)
            else:
                yield arrays

    def close(self) -> None:
        """End the connection."""
        self._loader.close()
