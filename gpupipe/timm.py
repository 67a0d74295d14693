"""create_loader() of timm, with gpupipe's engines in place of timm's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpupipe import config as configs
from gpupipe import loader as loaders
from gpupipe.engines import registry
from gpupipe.errors import ConfigError, warn
from gpupipe.loader import Loader
from gpupipe.loading.ignored_settings import log_ignored_settings
from gpupipe.runtime.registry import AUTO
from gpupipe.timm_adapter.arguments import (
    Batch,
    CollateMixup,
    Erase,
    check_arguments,
    drop_schedule,
    list_changes,
    read_data,
)
from gpupipe.timm_adapter.transform_steps import list_steps

if TYPE_CHECKING:
    from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TIMM_SEED = 42
"""The default of --seed of timm's train.py."""


class TimmLoader:
    """Delivers (images, labels), as the loaders of timm do.

    Attributes:
        loader: The gpupipe.Loader that makes the batches.
        dataset: The argument `dataset` of create_loader().

    Examples:
        >>> for images, labels in loader:
        ...     loss = loss_fn(model(images), labels)
    """

    def __init__(
        self, loader: Loader, dataset: Any, finish: Sequence[Callable[..., Batch]]
    ) -> None:
        """Create a loader; users call create_loader() instead.

        Args:
            loader: Makes the batches.
            dataset: The argument `dataset` of create_loader().
            finish: Functions that are called in order with (images, labels), and return both.
        """
        self.loader, self.dataset = loader, dataset
        self._finish = tuple(finish)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.loader:
            batch = images, labels
            for change in self._finish:
                batch = change(*batch)
            yield batch

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sampler(self) -> Any:
        """The sampler, which orders the samples: train.py calls `sampler.set_epoch(epoch)`."""
        return self.loader.sampler

    @property
    def mixup_enabled(self) -> bool:
        """Whether timm's mixup changes the batches. train.py sets it to False for the last epochs.

        Setting it has no effect if `collate_fn` of create_loader() was no FastCollateMixup.
        """
        return any(mix.mixup_enabled for mix in self._mixers)

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        for mix in self._mixers:
            mix.mixup_enabled = value

    @property
    def _mixers(self) -> list[Any]:
        return [change.mixup for change in self._finish if isinstance(change, CollateMixup)]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batch delivered last: see Loader.state_dict()."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Go on at the position that `state` holds: see Loader.load_state_dict()."""
        self.loader.load_state_dict(state, strict)

    def close(self) -> None:
        """Free threads, processes and memory. Further calls do nothing."""
        self.loader.close()

    def __enter__(self) -> TimmLoader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def create_loader(  # noqa: PLR0913, PLR0917  # timm's arguments
    dataset: Any,
    input_size: int | tuple[int, int] | tuple[int, int, int],
    batch_size: int,
    is_training: bool = False,
    no_aug: bool = False,
    re_prob: float = 0.0,
    re_mode: str = "const",
    re_count: int = 1,
    re_split: bool = False,
    train_crop_mode: str | None = None,
    scale: Sequence[float] | None = None,
    ratio: Sequence[float] | None = None,
    hflip: float = 0.5,
    vflip: float = 0.0,
    color_jitter: float | Sequence[float] | None = 0.4,
    color_jitter_prob: float | None = None,
    grayscale_prob: float = 0.0,
    gaussian_blur_prob: float = 0.0,
    auto_augment: str | None = None,
    num_aug_repeats: int = 0,
    num_aug_splits: int = 0,
    interpolation: str = "bilinear",
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    num_workers: int = 1,
    distributed: bool = False,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    crop_border_pixels: int | None = None,
    collate_fn: Callable[..., Any] | None = None,
    pin_memory: bool = False,
    fp16: bool = False,
    img_dtype: Any = None,
    device: Any = "cuda",
    use_prefetcher: bool = True,
    use_multi_epochs_loader: bool = False,
    persistent_workers: bool = True,
    worker_seeding: str = "all",
    tf_preprocessing: bool = False,
    input_size_choices: Sequence[Any] | None = None,
    *,
    seed: int = TIMM_SEED,
    **settings: Any,
) -> TimmLoader:
    """Create a loader with the arguments of timm.data.create_loader.

    Images are float tensors (B, C, H, W), normalized; labels are int64 (B,). Both are on `device`,
    or on the CPU with use_prefetcher=False, as in timm.

    The arguments mean what they mean in timm, with these differences:

    - `num_workers` is the number of CPU threads of the engine, at least 1; with
      engine="dataloader" it is the number of processes.
    - `pin_memory`, `use_multi_epochs_loader` and `worker_seeding` have no effect, and
      `persistent_workers` has an effect only with engine="dataloader". Draws depend only on `seed`,
      the epoch and the sample, and threads live on between epochs.
    - `collate_fn` takes timm's FastCollateMixup, which then mixes normalized images on `device`.
    - In evaluation over several ranks no sample comes twice.

    Args:
        dataset: A data set from timm's create_dataset() for a folder of images; a torchvision
            ImageFolder; the path of such a folder; or a dict, the `data` of a config.
        input_size: (channels, height, width), (height, width), or the side of a square, in pixels.
        batch_size: Samples per batch on each rank.
        seed: Seed of the order and of every random step, equal on all ranks.
        **settings: More settings of `loader:`, such as engine="cpu", on_error="skip".

    Raises:
        ConfigError: If arguments are not supported; the message names each of them.
        DataError: If there is nothing to read.
        DeviceError: If the device or engine is not available.

    Examples:
        >>> from timm.data import create_dataset
        >>> from gpupipe.timm import create_loader
        >>> dataset = create_dataset("", root="/imagenet", split="train")
        >>> loader = create_loader(dataset, (3, 224, 224), 128, is_training=True, num_workers=8)
    """
    arguments = {k: v for k, v in locals().items() if k not in ("settings", "seed")}
    settings = drop_schedule(settings)
    check_arguments(arguments)
    _warn_of_differences(auto_augment, interpolation)
    channels = _count_channels(input_size, mean)
    finish = list_changes(arguments)
    erases_later = any(isinstance(change, Erase) for change in finish)
    steps = list_steps(arguments, channels, erases=not erases_later)
    data, index = read_data(dataset, channels)
    place = str(device).replace("cuda", "gpu") if use_prefetcher else "cpu"
    engine = registry.choose(str(settings.get("engine", AUTO)), place)
    workers = "workers" if "workers" in engine.settings else "threads"
    loader = {
        "batch_size": batch_size,
        "seed": seed,
        "shuffle": is_training,
        "last_batch": "drop" if is_training else "partial",
        "device": place,
        "format": "tuple",
        workers: num_workers if workers == "workers" else max(1, num_workers),
        **({"persistent_workers": persistent_workers} if workers == "workers" else {}),
        **({"repeats": num_aug_repeats} if num_aug_repeats else {}),
        **({} if distributed else {"shard": {"rank": 0, "world_size": 1}}),
    }
    config = configs.read({"data": data, "pipeline": steps, "loader": loader | settings})
    created = loaders.create_loader(config, index)
    log_ignored_settings(config, created.config.loader, created.engine)
    return TimmLoader(created, dataset, finish)


def _warn_of_differences(auto_augment: str | None, interpolation: str) -> None:
    if auto_augment and interpolation in ("bicubic", "random"):
        warn(
            f"auto_augment={auto_augment!r} with interpolation={interpolation!r}: the operations "
            "of the policy, such as Rotate, resample with bilinear; the crop does as in timm",
            UserWarning,
        )


def _count_channels(input_size: Any, mean: Sequence[float]) -> int:
    with_channels = not isinstance(input_size, int) and len(input_size) == 3
    channels: int = input_size[0] if with_channels else len(mean)
    if channels not in (1, 3):
        problem = f"input_size has {channels} channels: write 3 or 1"
        raise ConfigError.at("gpupipe.timm.create_loader", problem)
    return channels
