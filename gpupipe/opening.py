"""load() opens a loader.

It is apart from gpupipe.loader because it starts a process that imports for long, before it imports
that module itself.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.runtime.files import expand_user, open_regular
from gpupipe.runtime.garbage_collection import pause_collection

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.dataset.given_dataset import MapDataset
    from gpupipe.loader import Loader
    from gpupipe.runtime.progress import Progress

_SOURCE = re.compile(r"""\bsource['"]?\s*[:=]\s*['"]?remote\b""")
_URL = re.compile(r"""\burl['"]?\s*[:=]\s*['"]?([a-z][a-z0-9+.-]*)://""")
_MAX_BYTES = 1 << 20
"""At most so much of a config is read, to see whether its data set is remote."""


def load(
    config: str | Path | Mapping[str, Any] | Config | MapDataset,
    *overrides: str,
    progress: Progress | None = None,
    **changes: Any,
) -> Loader:
    """Create a Loader from a config.

    Issues StandInWarning if drawn images replace a data set that could not be fetched. Logs each
    setting of the config that has no effect.

    Args:
        config: Path of a YAML file, a shipped name such as "lfw", a dict with the content of such a
            file, or a Config. `overrides` and `changes` do not apply to a Config. Or a data set: a
            list, or an object with `__len__` and `__getitem__`, such as a torch Dataset. The steps
            are then in `changes`, as pipeline=[...]; see the source python. The transform of one of
            torchvision's data sets becomes the first of the steps.
        *overrides: Texts "key=value", as on the command line: "loader.batch_size=64".
        progress: Called with (action, done, total) while the samples are indexed or fetched; total
            is None if it is unknown. By default, a notebook shows a progress bar after half a
            second, and nothing is shown elsewhere.
        **changes: Overrides as keyword arguments: batch_size=64, data={"root": "/images"}.

    Returns:
        The loader. Close it, or use it as a context manager.

    Raises:
        ConfigError: If the config is wrong, or the samples cannot be split over the ranks.
        DataError: If there is nothing to read.
        DeviceError: If the device or engine is not available.
        EngineError: If the engine cannot be built.
        FetchError: If the data set could not be downloaded.
        ServerError: If the config names a server that cannot be reached.
        GpupipeError: If load() is called in a worker process of a DataLoader.

    Examples:
        >>> with gpupipe.load("lfw", batch_size=64) as loader:
        ...     for batch in loader:
        ...         batch["image"]  # float32 (64, 3, 250, 250), on the loader's device
        ...         batch["label"]  # int64 (64,), on the loader's device
    """
    with start_early_worker(config, overrides, changes):
        with pause_collection():
            from gpupipe import config as configs
            from gpupipe import loader as loaders
            from gpupipe.dataset.given_dataset import is_dataset
            from gpupipe.runtime.progress import notebook_progress
            from gpupipe.torchvision_adapter.dataset_transforms import take_transform
        if is_dataset(config):
            config, changes = take_transform(config, changes)
        if not isinstance(config, configs.Config):
            with pause_collection():  # it imports the source, and the steps
                config = configs.read(config, overrides, **changes)
        with notebook_progress() as bar:
            return loaders.warn_about_data(loaders.open_loader(config, progress or bar))


@contextmanager
def start_early_worker(
    config: object, overrides: Sequence[str], changes: Mapping[str, Any]
) -> Iterator[None]:
    """Start a download worker if a config is one of a remote data set, as far as its text says."""
    own = _read_text(config)
    text = "\n".join([own, *overrides, _read_text(changes)])
    is_first_rank = os.environ.get("RANK", "0") == "0"  # the others start no workers
    if not is_first_rank or _SOURCE.search(text) is None:
        yield
        return
    from gpupipe.cache.worker_process import start_early

    url = _URL.search(text)
    is_changed = "data" in changes or any("data" in override for override in overrides)
    expected = b"" if is_changed else _describe_data(config, own)
    with start_early(expected, *([] if url is None else [url[1]])):
        yield


def _read_text(config: object) -> str:
    """Return the file of a config, or the source and the url of a dict; "" if there are none."""
    if isinstance(config, Mapping):
        data = config.get("data")
        if not isinstance(data, Mapping):
            return ""
        return "".join(f"{name}: {data.get(name)}\n" for name in ("source", "url"))
    with suppress(OSError, ValueError, TypeError):
        path = expand_user(config)  # type: ignore[arg-type]
        with open_regular(path) as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    return ""


def _describe_data(config: object, text: str) -> bytes:
    """Return what a config says of its data, as JSON: its `data`, or its text.

    Returns b"" if that is not all, as with ${...}.
    """
    with suppress(TypeError, ValueError):
        line = json.dumps(config["data"] if isinstance(config, Mapping) else text)
        return b"" if "${" in line else line.encode()
    return b""
