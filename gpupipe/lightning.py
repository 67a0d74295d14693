"""gpupipe in Lightning: a data module over YAML files, and a callback that measures the waiting for
data.

Works with the package `lightning` and with `pytorch_lightning`: with the one that is imported
already, else with the one that is installed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from gpupipe.config import read_in_layers
from gpupipe.errors import ConfigError, Problem
from gpupipe.loader import Loader, load
from gpupipe.monitor import Monitor as _Watch
from gpupipe.runtime.ranks import told_ranks_on_machine

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _package() -> Any:
    """Raises ModuleNotFoundError, saying what to install, where there is none."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    there = [name for name in _PACKAGES if find_spec(name.partition(".")[0]) is not None]
    if not (loaded or there):
        raise ModuleNotFoundError(
            "gpupipe.lightning needs Lightning: pip install lightning", name="lightning"
        )
    return import_module((loaded or there)[0])


if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
else:
    _pl = _package()
    LightningDataModule, Callback = _pl.LightningDataModule, _pl.Callback

Source = str | dict[str, Any]


class PipeDataModule(LightningDataModule):
    """Loaders of configs, on the trainer's device, each rank with its part of every batch.

    Mid-epoch checkpoints of the trainer hold the state of the training loader: fit(ckpt_path=...)
    goes on with the very next batch.
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
        """Configs as for gpupipe.load(): a path, a shipped name, or a dict.

        Args:
            train: Config of the training loader.
            val: Config of the validation loader.
            test: Config of the test loader.
            predict: Config of the prediction loader.
            batch_size: Samples a batch and rank, in place of what the configs say.
            seed: Of the order and of every random step, in place of what the configs say.
            engine: dali, dataloader or auto, in place of what the configs say.
            format: What a batch is: tuple, (image, label), or dict.
            overrides: Further settings for all loaders: {"threads": 4}.
            train_overrides: For the training loader alone: {"data": {"root": "/train"}}.
            val_overrides: For the validation loader alone.
            test_overrides: For the test loader alone.
            predict_overrides: For the prediction loader alone.
            allow_same_samples: Train and validate on the same samples, which is otherwise refused.
            **more_overrides: Further settings for all loaders, as keyword arguments.

        Example:
            >>> PipeDataModule(
            ...     train="imagenet_train",
            ...     val="imagenet_eval",
            ...     threads=8,
            ...     train_overrides={"data": {"root": "/imagenet/train"}},
            ...     val_overrides={"data": {"root": "/imagenet/val"}},
            ... )

        """
        super().__init__()
        given = {"batch_size": batch_size, "seed": seed, "engine": engine, "format": format}
        self._configs = {"train": train, "val": val, "test": test, "predict": predict}
        self._overrides = (
            {k: v for k, v in given.items() if v is not None} | (overrides or {}) | more_overrides
        )
        self._own_overrides = {
            "train": train_overrides,
            "val": val_overrides,
            "test": test_overrides,
            "predict": predict_overrides,
        }
        self._allow_same_samples = allow_same_samples
        self._loaders: dict[str, Loader] = {}
        if val is None:  # or Lightning would look for validation data, and warn that it is empty
            # an instance's own
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]

    def train_dataloader(self) -> Loader:
        """With Trainer(overfit_batches=...) not shuffled, so that the same batches come in each
        epoch.
        """
        overfit = self.trainer is not None and getattr(self.trainer, "overfit_batches", 0) > 0
        loader = self._load("train", **({"shuffle": False} if overfit else {}))
        if self.trainer is not None:
            _line_up(self.trainer, loader)
        return loader

    def val_dataloader(self) -> Loader:
        return self._load("val")

    def test_dataloader(self) -> Loader:
        return self._load("test")

    def predict_dataloader(self) -> Loader:
        return self._load("predict")

    def teardown(self, stage: str) -> None:
        """Give back threads and memory."""
        for loader in self._loaders.values():
            loader.close()
        self._loaders.clear()

    def on_exception(self, exception: BaseException) -> None:
        """Behind an error Lightning calls no teardown."""
        self.teardown("")

    def _load(self, which: str, **changes: Any) -> Loader:
        """A new loader; the one before it, which Lightning asked to be reloaded, is closed."""
        if (config := self._configs[which]) is None:
            raise ValueError(
                f"PipeDataModule has no config for '{which}': "
                f"PipeDataModule({which}='configs/...yaml')"
            )
        if which in self._loaders:
            self._loaders.pop(which).close()
        own = self._own_overrides[which] or {}
        layers = [list(d.items()) for d in (self._of_trainer(), self._overrides, own, changes)]
        with told_ranks_on_machine(1 if self.trainer is None else self.trainer.num_devices):
            self._loaders[which] = load(read_in_layers(config, *layers))
        if not self._allow_same_samples:
            self._check_apart()
        return self._loaders[which]

    def _check_apart(self) -> None:
        """Raises ConfigError where training and validation have the same samples."""
        train, val = self._loaders.get("train"), self._loaders.get("val")
        if train is None or val is None or not train.index.same_samples(val.index):
            return
        problem = (
            f"train and val are the same {train.index.summary}, of {train.index.root}, so that "
            "validation would say nothing: give each its own data, such as "
            "val_overrides={'data': {'root': ...}}; where it is meant, allow_same_samples=True"
        )
        self.teardown("")
        raise ConfigError([Problem("PipeDataModule", problem)])

    def __str__(self) -> str:
        """Lightning's own would make new loaders to ask them how large they are."""
        return "\n".join([f"{type(self).__name__}:", *map(self._described, self._configs)])

    def _described(self, which: str) -> str:
        config, loader = self._configs[which], self._loaders.get(which)
        named = "none" if config is None else "a dict" if isinstance(config, dict) else config
        return f"  {f'{which}:':9}{named if loader is None else f'{named}, {loader.index.summary}'}"

    def _of_trainer(self) -> dict[str, Any]:
        """Device and rank; nothing without a trainer."""
        if self.trainer is None:
            return {}
        device = self.trainer.strategy.root_device
        shard = {"rank": self.trainer.global_rank, "world_size": self.trainer.world_size}
        return {
            "device": f"gpu:{device.index or 0}" if device.type == "cuda" else "cpu",
            "shard": shard,
        }


def _line_up(trainer: Trainer, loader: Loader) -> None:
    """Where the trainer resumes with another batch size or world size, let it count as many batches
    done as are missing to a whole epoch of the new ones: it would end the epoch too early
    otherwise, or not notice its end.
    """
    resume = loader.load_state_dict

    def load_state_dict(state: dict[str, Any], strict: bool = True) -> None:
        resume(state, strict)
        done: Any = trainer.fit_loop.epoch_loop.batch_progress.current
        more = len(loader) - loader.sampler.left - done.processed if loader.sampler.position else 0
        for name in ("ready", "started", "processed", "completed"):
            setattr(done, name, getattr(done, name) + more)

    # of this one loader
    loader.load_state_dict = load_state_dict  # type: ignore[method-assign, assignment]


class DataWaitMonitor(Callback):
    """Logs how much of the time of training goes to waiting for data, and says it at the end.

    Trainer(callbacks=[gpupipe.lightning.DataWaitMonitor()]) logs data/wait_share, data/wait_ms and
    data/step_ms as often as the trainer logs. `watch` is then the gpupipe.Monitor of the training
    loader; None where none of gpupipe's loaders is trained on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watch: _Watch | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch that is resumed in its middle does not start again."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = next(
            (found for found in _flat(trainer.train_dataloader) if isinstance(found, Loader)), None
        )
        if loader is None:
            self.watch = None
        elif self.watch is None or self.watch.loader is not loader:
            before, self.watch = self.watch, _Watch(loader)
            self.watch.add(before)
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
        """Validation is no step."""
        if self.watch is not None and not trainer.sanity_checking:
            self.watch.resume()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.watch is not None and trainer.is_global_zero:
            print(self.watch.summary())


def _flat(loaders: Any) -> list[Any]:
    if isinstance(loaders, dict):
        loaders = loaders.values()
    elif not isinstance(loaders, (list, tuple)):
        return [loaders]
    return [found for part in loaders for found in _flat(part)]
