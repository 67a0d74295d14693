"""The decoded cache of a server: its engine fills it, and clients get the same batches."""

from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.engines.remote.engine import RemoteEngine
from gpupipe.loading.ignored_settings import list_ignored_settings
from helpers.decoded_caches import MEMORY, are_equal, counters, epochs_of
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture
from helpers.served import serving

STEPS = [
    "decode",
    {"resize": {"size": [60, 90]}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


def config_of(root: Path, **data: Any) -> dict[str, Any]:
    return {
        "data": {"source": "folder", "root": str(root), **data},
        "pipeline": STEPS,
        "loader": {"batch_size": 8, "device": "cpu", "ids": True},
    }


@pytest.mark.parametrize("ship", ["batch", "uint8"])
@pytest.mark.parametrize("engine", ["auto", "dali"])
def test_clients_get_the_same_batches(faces: Path, ship: str, engine: str) -> None:
    plain = epochs_of(gpupipe.load(config_of(faces), engine=engine), 2)
    cached = config_of(faces, cache_decoded=MEMORY)
    with serving(cached, {"engine": engine}, ship=ship) as server:
        client = gpupipe.connect(server.address, device="cpu", ids=True)
        assert are_equal(epochs_of(client, 2), plain)
        assert counters().records == 60


def test_the_cache_of_a_clients_config_has_no_effect_and_is_told(faces: Path) -> None:
    plain = epochs_of(gpupipe.load(config_of(faces)), 1)
    with serving(config_of(faces)) as server:
        remote = {"engine": "remote", "server": server.address}
        cached = configs.read(config_of(faces, cache_decoded=MEMORY), **remote)
        assert "data.cache_decoded has no effect" in list_ignored_settings(cached, RemoteEngine)[-1]
        loader = gpupipe.load(config_of(faces, cache_decoded=MEMORY), **remote)
        assert are_equal(epochs_of(loader, 1), plain)
    with pytest.raises(ValueError, match="not enough values"):
        counters()
