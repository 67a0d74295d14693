from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpupipe import config
from helpers.config_texts import DATA, LOADER, STEPS, read


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
