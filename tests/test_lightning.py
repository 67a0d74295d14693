"""PipeDataModule under the real Trainer: whatever its arguments, every epoch delivers what it
should, and nothing hangs.
"""

import os
from collections.abc import Iterator
from itertools import product
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from nets import Seen

import gpupipe
from gpupipe.lightning import DataWaitMonitor, PipeDataModule
from helpers.dots import config as config  # noqa: PLC0414  # a fixture
from helpers.dots import dots as dots  # noqa: PLC0414  # a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*Consider increasing the value of the `num_workers`"),
    pytest.mark.filterwarnings("ignore:You requested to overfit"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
    pytest.mark.filterwarnings("ignore:GPU available but not used"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
]
COUNT = 37
"""Of the images in `dots`."""
ENGINES = ["dataloader", "dali"]
STEPS = 8


def trainer(folder: Path, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 3,
            "num_sanity_val_steps": 0,
            "default_root_dir": folder,
            **quiet,
            **options,
        }
    )


def fit(
    config: dict[str, Any],
    folder: Path,
    net: Seen,
    val: bool = True,
    engine: str = "dataloader",
    ckpt_path: Any = None,
    **options: Any,
) -> Trainer:
    configs = {"train": config, "val": config if val else None}
    data = PipeDataModule(**configs, format="dict", engine=engine, allow_same_samples=True)
    done = trainer(folder, **options)
    done.fit(net, datamodule=data, ckpt_path=ckpt_path)
    return done


def orders(config: dict[str, Any], count: int) -> list[list[list[int]]]:
    """The ids of every batch of epochs, without Lightning."""
    with gpupipe.load(config, device="cpu") as loader:
        return [[b["id"].tolist() for b in loader] for _ in range(count)]


CASES: list[tuple[dict[str, Any], list[int], list[int]]] = [
    ({}, [8, 8, 8], [COUNT] * 3),
    ({"num_sanity_val_steps": 2}, [8, 8, 8], [10, COUNT, COUNT, COUNT]),
    ({"limit_train_batches": 3}, [3, 3, 3], [COUNT] * 3),
    ({"limit_train_batches": 0.5}, [4, 4, 4], [COUNT] * 3),
    ({"limit_val_batches": 2}, [8, 8, 8], [10] * 3),
    ({"limit_val_batches": 0}, [8, 8, 8], []),
    ({"val_check_interval": 3}, [8, 8, 8], [COUNT] * 6),
    ({"val_check_interval": 0.25}, [8, 8, 8], [COUNT] * 12),
    ({"max_steps": 11, "max_epochs": -1}, [8, 3], [COUNT]),
    ({"reload_dataloaders_every_n_epochs": 1}, [8, 8, 8], [COUNT] * 3),
    ({"accumulate_grad_batches": 3}, [8, 8, 8], [COUNT] * 3),
    ({"check_val_every_n_epoch": 2}, [8, 8, 8], [COUNT]),
    ({"fast_dev_run": 2}, [2], [10]),
]
"""What the trainer is told; batches of each epoch of training; samples of each validation."""


def with_engines() -> Iterator[Any]:
    """Each case with one of the engines, in turn; with both if GPUPIPE_TEST_ALL=1."""
    for (number, case), engine in product(enumerate(CASES), ENGINES):
        is_turn = engine == ENGINES[number % len(ENGINES)]
        if is_turn or os.environ.get("GPUPIPE_TEST_ALL") == "1":
            yield pytest.param(*case, engine, id=f"{case[0]}-{engine}")


@pytest.mark.parametrize(("options", "train", "val", "engine"), list(with_engines()))
def test_each_epoch_delivers_what_it_should(
    config: Any,
    tmp_path: Path,
    options: dict[str, Any],
    train: list[int],
    val: list[int],
    engine: str,
) -> None:
    net, expected = Seen(), orders(config, 3)
    fit(config, tmp_path, net, engine=engine, **options)
    assert {e: len(b) for e, b in net.trained.items()} == dict(enumerate(train))
    assert all(batches == expected[e][: len(batches)] for e, batches in net.trained.items())
    assert [len(ids) for ids in net.validated] == val
    assert all(len(set(ids)) == len(ids) for ids in net.validated)


def test_overfit_batches_sees_the_same_batches_in_each_epoch(config: Any, tmp_path: Path) -> None:
    net = Seen()
    fit(config, tmp_path, net, val=False, overfit_batches=2)
    assert list(net.trained.values()) == [[list(range(5)), list(range(5, 10))]] * 3


def test_early_stopping_and_an_exception_end_the_run_and_free_the_loaders(
    config: Any, tmp_path: Path
) -> None:
    class Worse(Seen):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            super().validation_step(batch, batch_idx)
            self.log("loss", float(self.current_epoch), batch_size=1)

    net: Seen = Worse()
    done = fit(config, tmp_path, net, max_epochs=9, callbacks=[EarlyStopping("loss", patience=1)])
    assert sorted(net.trained) == [0, 1]
    assert not done.datamodule._loaders
    stopped, given = Seen(stop_at=11), {"train": config, "val": config, "format": "dict"}
    data = PipeDataModule(**given, workers=1, allow_same_samples=True)
    with pytest.raises(RuntimeError, match="stopped by the test"):
        trainer(tmp_path).fit(stopped, datamodule=data)
    assert [len(b) for b in stopped.trained.values()] == [8, 3]
    assert not data._loaders
    assert not active_children()


# --- resume


def weights(net: Seen) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


class Estimating(Seen):
    """Reads how many steps there will be, as schedules of the learning rate need it.

    Lightning then sets up the training loader before it restores the checkpoint (its issue 20550).
    """

    def configure_optimizers(self) -> Any:
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("kind", "every"), [(Seen, 3), (Seen, 8), (Seen, 5), (Estimating, 3), (Estimating, 8)]
)
def test_a_resumed_run_is_the_uninterrupted_one(
    config: Any, tmp_path: Path, engine: str, kind: type[Seen], every: int
) -> None:
    """Checkpoints in mid-epoch (3, 5) and at the end of one (8); the run breaks off behind the next
    but one step.
    """
    torch.manual_seed(0)
    whole = kind()
    begun = {k: v.clone() for k, v in whole.state_dict().items()}
    fit(config, tmp_path, whole, engine=engine)
    assert not isinstance(whole, Estimating) or whole.estimated == 3 * STEPS
    broken = kind(stop_at=every + 2)
    broken.load_state_dict(begun)
    saving = ModelCheckpoint(
        tmp_path / "kept", every_n_train_steps=every, save_top_k=-1, filename="{step}"
    )
    with pytest.raises(RuntimeError, match="stopped by the test"):
        fit(config, tmp_path, broken, engine=engine, callbacks=[saving], enable_checkpointing=True)
    resumed = kind()
    fit(
        config, tmp_path, resumed, engine=engine, ckpt_path=tmp_path / "kept" / f"step={every}.ckpt"
    )
    flat = [b for e in sorted(whole.trained) for b in whole.trained[e]]
    assert [b for e in sorted(resumed.trained) for b in resumed.trained[e]] == flat[every:]
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    assert resumed.validated == whole.validated[every // STEPS :]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("before", "after"), [(5, 3), (5, 12), (3, 5), (4, 36)])
def test_a_run_resumed_with_other_batches_loses_nothing(
    config: Any, tmp_path: Path, engine: str, before: int, after: int
) -> None:
    saving = ModelCheckpoint(
        tmp_path / "kept", every_n_train_steps=3, save_top_k=-1, filename="{step}"
    )
    broken, resumed = Seen(stop_at=5), Seen()
    with pytest.raises(RuntimeError, match="stopped by the test"):
        fit(
            config | {"loader": config["loader"] | {"batch_size": before}},
            tmp_path,
            broken,
            engine=engine,
            callbacks=[saving],
            enable_checkpointing=True,
        )
    kept = tmp_path / "kept" / "step=3.ckpt"
    fit(
        config | {"loader": config["loader"] | {"batch_size": after}},
        tmp_path,
        resumed,
        engine=engine,
        ckpt_path=kept,
    )
    epochs = [[i for b in resumed.trained[e] for i in b] for e in range(3)]
    assert sorted(epochs[0] + [i for b in broken.trained[0][:3] for i in b]) == list(range(COUNT))
    assert sorted(epochs[1]) == sorted(epochs[2]) == list(range(COUNT))
    assert [len(ids) for ids in resumed.validated] == [COUNT] * 3


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(
    config: Any, tmp_path: Path
) -> None:
    whole, first, then = Seen(), Seen(), Seen()
    fit(config, tmp_path, whole, max_epochs=3)
    saving = ModelCheckpoint(
        tmp_path / "kept",
        every_n_epochs=1,
        save_on_train_epoch_end=True,
        filename="{epoch}",
        save_top_k=-1,
    )
    fit(config, tmp_path, first, max_epochs=2, callbacks=[saving], enable_checkpointing=True)
    for kept in (0, 1):
        then = Seen()
        fit(
            config, tmp_path, then, max_epochs=3, ckpt_path=tmp_path / "kept" / f"epoch={kept}.ckpt"
        )
        assert then.trained == {e: b for e, b in whole.trained.items() if e > kept}


def test_without_state_of_the_loader_the_epoch_is_the_trainers(config: Any, tmp_path: Path) -> None:
    """A checkpoint whose loader had no state: only set_epoch() tells which epoch comes."""
    whole, first, then = Seen(), Seen(), Seen()
    fit(config, tmp_path, whole, max_epochs=3)
    saving = ModelCheckpoint(tmp_path / "kept", every_n_epochs=1, filename="{epoch}", save_top_k=-1)
    fit(config, tmp_path, first, max_epochs=2, callbacks=[saving], enable_checkpointing=True)
    file = tmp_path / "kept" / "epoch=1.ckpt"
    content = torch.load(file, weights_only=False)
    content["loops"]["fit_loop"]["state_dict"].pop("combined_loader")
    torch.save(content, file)
    fit(config, tmp_path, then, max_epochs=3, ckpt_path=file)
    assert then.trained == {2: whole.trained[2]}


# --- the rest of the module


def test_a_plain_module_may_return_loaders(config: Any, tmp_path: Path) -> None:
    class Own(Seen):
        def train_dataloader(self) -> Any:
            return gpupipe.load(config, device="cpu")

        def val_dataloader(self) -> Any:
            return gpupipe.load(config, device="cpu", shuffle=False)

    net = Own()
    trainer(tmp_path, max_epochs=2).fit(net)
    assert list(net.trained.values()) == orders(config, 2)
    assert net.validated == [list(range(COUNT))] * 2


def test_test_and_predict(config: Any, tmp_path: Path) -> None:
    class Counts(Seen):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.validated.append(batch[1].tolist())

        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return batch[1]

    net, data = Counts(), PipeDataModule(test=config, predict=config, shuffle=False, batch_size=10)
    trainer(tmp_path).test(net, datamodule=data, verbose=False)
    found = trainer(tmp_path).predict(net, datamodule=data)
    assert found is not None
    assert [len(b) for b in net.validated] == [len(b) for b in found] == [10, 10, 10, 7]
    with pytest.raises(ValueError, match=r"no config for 'train'"):
        trainer(tmp_path).fit(net, datamodule=data)


def test_the_monitor_logs_and_sums_up(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = DataWaitMonitor()
    logged: list[dict[str, Any]] = []

    class Logs(Seen):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            logged.append(dict(self.trainer.callback_metrics))

    fit(config, tmp_path, Logs(), callbacks=[watch], log_every_n_steps=2)
    assert watch.watch is not None
    assert watch.watch.steps == 3 * STEPS
    assert 0 < watch.watch.waited < watch.watch.seconds
    assert 0 < float(logged[-1]["data/wait_share"]) < 1
    assert f"of step time ({1000 * watch.watch.waited / 24:.1f} of" in capsys.readouterr().out
