"""Lightning integration: a data module over configs, and a callback that measures waiting for data.

It uses the package `lightning` or `pytorch_lightning`: the one that is already imported, otherwise
the one that is installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpupipe.config import read_with
from gpupipe.errors import ConfigError
from gpupipe.loader import Loader
from gpupipe.monitor import Monitor
from gpupipe.opening import load
from gpupipe.runtime.installation import install_command
from gpupipe.runtime.ranks import assume_ranks_on_machine

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _import_lightning() -> Any:
    """Import Lightning, or raise a ModuleNotFoundError that names the command to install it."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    installed = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not (loaded or installed):
        raise ModuleNotFoundError(
            f"gpupipe.lightning needs Lightning: {install_command('lightning')}", name="lightning"
        )
    return import_module((loaded or installed)[0])


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
else:
    _pl = _import_lightning()
    LightningDataModule, Callback = _pl.LightningDataModule, _pl.Callback

Source = str | dict[str, Any]


class PipeDataModule(LightningDataModule):
    """A LightningDataModule that loads configs on the trainer's device, sharded over its ranks.

    Checkpoints that the trainer saves during an epoch hold the state of the training loader, so
    that fit(ckpt_path=...) continues with the next batch.
    """

    def __init__(  # noqa: PLR0913  # LightningCLI makes an option of each
        self,
        train: Source | None = None,
        val: Source | None = None,
        test: Source | None = None,
        predict: Source | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        engine: str | None = None,
        format: str = "tuple",
        overrides: dict[str, Any] | None = None,
        *,
        train_overrides: dict[str, Any] | None = None,
        val_overrides: dict[str, Any] | None = None,
        test_overrides: dict[str, Any] | None = None,
        predict_overrides: dict[str, Any] | None = None,
        allow_same_samples: bool = False,
        **more_overrides: Any,
    ) -> None:
        """Describe the loaders; each is created when the trainer requests it.

        A config is a path, a shipped name or a dict, as for gpupipe.load(). Later settings override
        earlier ones: config, then device and rank of the trainer, then the settings for all
        loaders, then the settings for one loader.

        Args:
            train: Config of the training loader.
            val: Config of the validation loader.
            test: Config of the test loader.
            predict: Config of the prediction loader.
            batch_size: Samples per batch on each rank; None keeps the value of each config.
            seed: Seed of the order and of every random step; None keeps the value of each config.
            engine: dali, dataloader or auto; None keeps the value of each config.
            format: Format of a batch: "tuple" for (first field, label), or "dict".
            overrides: More settings for all loaders, such as {"threads": 4}.
            train_overrides: Settings for the training loader only, such as
                {"data": {"root": "/train"}}.
            val_overrides: Settings for the validation loader only.
            test_overrides: Settings for the test loader only.
            predict_overrides: Settings for the prediction loader only.
            allow_same_samples: Whether training and validation may have the same samples. If false,
                the module raises ConfigError in that case. Two loaders of one data set have
                different samples if their `subset` settings share no id: two parts of `split`, or
                two files of ids without a common id.
            **more_overrides: More settings for all loaders, as keyword arguments.

        Examples:
            >>> PipeDataModule(
            ...     train="imagenet_train",
            ...     val="imagenet_eval",
            ...     threads=8,
            ...     train_overrides={"data": {"root": "/imagenet/train"}},
            ...     val_overrides={"data": {"root": "/imagenet/val"}},
            ... )
        """
        super().__init__()
        named = {"batch_size": batch_size, "seed": seed, "engine": engine, "format": format}
        self._configs = {"train": train, "val": val, "test": test, "predict": predict}
        self._overrides = (
            {k: v for k, v in named.items() if v is not None} | (overrides or {}) | more_overrides
        )
        self._overrides_of_one = {
            "train": train_overrides,
            "val": val_overrides,
            "test": test_overrides,
            "predict": predict_overrides,
        }
        self._allow_same_samples = allow_same_samples
        self._loaders: dict[str, Loader] = {}
        if val is None:
            # If this method is overridden, Lightning expects validation data, and warns without.
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def train_dataloader(self) -> Loader:
        """Create the training loader.

        Trainer(overfit_batches=...) turns shuffling, repeats, weights and epoch_size off, so that
        each epoch has the same batches.

        Raises:
            ConfigError: If the loader has the same samples as the validation loader.
            ValueError: If the module has no config for training.
        """
        overfit = self.trainer is not None and getattr(self.trainer, "overfit_batches", 0) > 0
        same = {"shuffle": False, "repeats": 1, "weights": None, "epoch_size": None}
        loader = self._load("train", **(same if overfit else {}))
        if self.trainer is not None:
            _correct_batch_count(self.trainer, loader)
            trainer: Any = self.trainer
            if not any(isinstance(each, _RestoreLate) for each in trainer.callbacks):
                trainer.callbacks.insert(0, _RestoreLate())
        return loader

    def val_dataloader(self) -> Loader:
        """Create the validation loader.

        Raises:
            ConfigError: If the loader has the same samples as the training loader.
            ValueError: If the module has no config for validation.
        """
        return self._load("val")

    def test_dataloader(self) -> Loader:
        """Create the test loader. Raises ValueError if the module has no config `test`."""
        return self._load("test")

    def predict_dataloader(self) -> Loader:
        """Create the prediction loader. Raises ValueError if the module has no config `predict`."""
        return self._load("predict")

    def teardown(self, stage: str) -> None:
        """Close all loaders."""
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def on_exception(self, exception: BaseException) -> None:
        """Close all loaders: after an error Lightning does not call teardown()."""
        self.teardown("")

    def _load(self, which: str, **changes: Any) -> Loader:
        """Create the loader `which`. Close an earlier one: Lightning may reload during a run."""
        if (config := self._configs[which]) is None:
            raise ValueError(
                f"PipeDataModule has no config for '{which}': "
                f"PipeDataModule({which}='configs/...yaml')"
            )
        if which in self._loaders:
            self._loaders.pop(which).close()
        own = self._overrides_of_one[which] or {}
        overrides = (self._trainer_settings(), self._overrides, own, changes)
        with assume_ranks_on_machine(1 if self.trainer is None else self.trainer.num_devices):
            self._loaders[which] = load(read_with(config, *(list(d.items()) for d in overrides)))
        if not self._allow_same_samples:
            self._check_samples_differ()
        return self._loaders[which]

    def _check_samples_differ(self) -> None:
        """Raise ConfigError if training and validation have the same samples."""
        train, val = self._loaders.get("train"), self._loaders.get("val")
        if train is None or val is None or not train.index.has_same_samples(val.index):
            return
        if not train.sampler.selection.overlaps(val.sampler.selection):
            return
        problem = (
            f"train and val are the same {train.index.summary}, of {train.index.root}, so that "
            "validation would say nothing: give each its own data, such as "
            "val_overrides={'data': {'root': ...}}, or a part of its own, such as split={'train': "
            "0.9, 'val': 0.1} with {'subset': 'val'}, or files without a common id as "
            "loader.subset; where it is meant, allow_same_samples=True"
        )
        self.teardown("")
        raise ConfigError.at("PipeDataModule", problem)

    def __str__(self) -> str:
        """List configs and open loaders; Lightning's version would create loaders."""
        lines = [f"{type(self).__name__}:"]
        for which, config in self._configs.items():
            named = "none" if config is None else "a dict" if isinstance(config, dict) else config
            loader = self._loaders.get(which)
            samples = "" if loader is None else f", {loader.index.summary}"
            lines.append(f"  {f'{which}:':9}{named}{samples}")
        return "\n".join(lines)

    def _trainer_settings(self) -> dict[str, Any]:
        """Return the settings that the trainer decides: device and shard."""
        if self.trainer is None:
            return {}
        device = self.trainer.strategy.root_device
        shard = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        return {
            "device": f"gpu:{device.index or 0}" if device.type == "cuda" else "cpu",
            "shard": shard,
        }


def _correct_batch_count(trainer: Trainer, loader: Loader) -> None:
    """Make loader.load_state_dict() correct the trainer's batch counts.

    They are wrong if a run resumes with another batch size or world size. The trainer ends an epoch
    after len(loader) batches. So its count of finished batches must be len(loader) minus the
    remaining batches. With another count the epoch ends too early or never.
    """
    resume = loader.load_state_dict

    def load_state_dict(state: dict[str, Any], strict: bool = True) -> None:
        resume(state, strict)
        progress: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        more = 0
        if loader.sampler.position:
            more = len(loader) - loader.sampler.left - progress.processed
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + more)

    loader.load_state_dict = load_state_dict  # type: ignore[method-assign, assignment]


class _RestoreLate(Callback):
    """Restores the state of a loader that was created before Lightning read the checkpoint.

    Lightning's estimated_stepping_batches, read in configure_optimizers(), creates the training
    loader early. Lightning then never loads the loader's state:
    https://github.com/Lightning-AI/pytorch-lightning/issues/20550
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loop: Any = trainer.fit_loop
        if not loop.restarting or not loop._combined_loader_states_to_load:
            return
        loop._load_combined_loader_states()
        loop._data_fetcher.setup(loop._combined_loader)
        iter(loop._data_fetcher)  # a new iterator: the state ended the old one


class DataWaitMonitor(Callback):
    """Callback that logs how long training waits for data, and prints a summary at the end.

    It logs the values of Monitor.metrics(), such as data/wait_share, as often as the trainer logs.

    Attributes:
        watch: The gpupipe.Monitor of the training loader; None before training, and if the training
            loader is not a gpupipe.Loader.

    Examples:
        >>> Trainer(callbacks=[gpupipe.lightning.DataWaitMonitor()])
    """

    def __init__(self) -> None:
        super().__init__()
        self.watch: Monitor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start measuring: Lightning skips on_train_epoch_start if it resumes within an epoch."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = next(
            (item for item in _flatten(trainer.train_dataloader) if isinstance(item, Loader)), None
        )
        if loader is None:
            self.watch = None
        elif self.watch is None or self.watch.loader is not loader:
            previous, self.watch = self.watch, Monitor(loader)
            self.watch.add(previous)
        else:
            self.watch.resume()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.watch is None:
            return
        self.watch.step()
        if (batch_idx + 1) % getattr(trainer, "log_every_n_steps", 50) == 0:
            pl_module.log_dict(self.watch.metrics(), on_step=True, on_epoch=False, batch_size=1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the time of validation from the measurement."""
        if self.watch is not None and not trainer.sanity_checking:
            self.watch.resume()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.watch is not None and trainer.is_global_zero:
            print(self.watch.summary())


def _flatten(loaders: Any) -> list[Any]:
    """Return the loaders in nested dicts, lists and tuples, which Lightning accepts."""
    if isinstance(loaders, dict):
        loaders = loaders.values()
    elif not isinstance(loaders, (list, tuple)):
        return [loaders]
    return [item for part in loaders for item in _flatten(part)]
