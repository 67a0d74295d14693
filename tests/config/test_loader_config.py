import inspect
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import gpupipe
from gpupipe import config
from gpupipe.config import LoaderConfig
from gpupipe.errors import ConfigError
from helpers.config_texts import DATA, LOADER, STEPS, read


def test_every_argument_of_torchs_dataloader_is_a_setting_or_has_advice() -> None:
    arguments = set(inspect.signature(DataLoader.__init__).parameters) - {"self", "dataset"}
    known = {*LoaderConfig.model_fields, *LoaderConfig.advice_for}
    assert arguments <= known
    assert not LoaderConfig.advice_for.keys() & LoaderConfig.model_fields.keys()
    with pytest.raises(ConfigError, match=r"num_workers: .*cpu and dali have threads.*dataloader"):
        gpupipe.connect("tcp://127.0.0.1:5557", num_workers=3)


def test_defaults() -> None:
    loader = read(DATA + STEPS).loader
    assert loader == config.LoaderConfig()
    assert (
        loader.batch_size,
        loader.shuffle,
        loader.last_batch,
        loader.threads,
        loader.shard.world_size,
    ) == (256, True, "partial", "auto", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_bad: 1e-3", 1e-3),
        ("max_bad: 0", 0.0),
        ("batch_size: 1e3", 1000),
        ("batch_size: 1_000", 1000),
        ("batch_size: 010", 10),
        ("batch_size: '64'", 64),
        ("shuffle: no", False),
        ("shuffle: on", True),
        ("shuffle: False", False),
        ("ids: yes", True),
        ("threads: 4", 4),
        ("threads: auto", "auto"),
        ("device: cuda:1", "gpu:1"),
        ("device: gpu", "gpu"),
        ("dtype: ~", None),
        ("seed: 9223372036854775807", 2**63 - 1),
        ("quarantine: 2024-01-02", Path("2024-01-02")),
        ("batch_size: ${oc.env:BATCH,'32'}", 32),
        ("prefetch: ${.threads}", "auto"),
    ],
    ids=str,
)
def test_values(text: str, value: Any) -> None:
    if text == "prefetch: ${.threads}":
        assert read(LOADER + text + "\n  threads: 3\n").loader.prefetch == 3
        return
    assert getattr(read(LOADER + text + "\n").loader, text.partition(":")[0]) == value
