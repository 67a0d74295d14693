"""load() opens a loader.

It is apart from gpupipe.loader because it starts a process that imports for long, before it imports
that module itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpupipe.cache.worker_process import start_early
from gpupipe.runtime.garbage_collection import pause_collection

if TYPE_CHECKING:
    from gpupipe.config import Config
    from gpupipe.dataset.given_dataset import MapDataset
    from gpupipe.loader import Loader
    from gpupipe.runtime.progress import Progress


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
    with start_early(config, overrides, changes):
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
