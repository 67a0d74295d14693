"""A server under a schedule: its batches, what it leaves to clients, and what it says of itself."""

from typing import Any

import pytest

import gpupipe
from gpupipe.config import read as read_config
from helpers.served import same_batches, serving

SCHEDULED = [
    "decode",
    {"random_resized_crop": {"size": {"from": 6, "to": 30, "epochs": [0, 2]}}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": {"value": 0.1, "until": 1, "then": 0.5}, "std": 0.5}},
]


@pytest.fixture
def scheduled(config: dict[str, Any]) -> dict[str, Any]:
    return config | {
        "pipeline": SCHEDULED,
        "batch": [{"mixup": {"alpha": {"value": 0.2, "until": 1, "then": 0.8}}}],
    }


@pytest.mark.parametrize("ship", ["batch", "uint8"])
def test_batches_are_what_they_are_in_process(scheduled: dict[str, Any], ship: str) -> None:
    """They grow from epoch to epoch. With ship: uint8 the client normalizes, also as scheduled."""
    with gpupipe.load(scheduled) as loader:
        expected = [list(loader) for _ in range(4)]
    assert [e[0]["image"].shape[2] for e in expected] == [6, 18, 30, 30]
    with (
        serving(scheduled, ship=ship) as server,
        gpupipe.connect(server.address, device="cpu", ids=True) as loader,
    ):
        served, own = loader.config, read_config(scheduled)
        assert served.pipeline.fingerprint == own.pipeline.fingerprint
        assert served.batch.fingerprint == own.batch.fingerprint
        for epoch in expected:
            found = list(loader)
            assert same_batches(found, epoch)
            assert all(a["label"].equal(b["label"]) for a, b in zip(found, epoch, strict=True))


def test_a_client_with_another_schedule_is_refused(scheduled: dict[str, Any]) -> None:
    other = scheduled | {"pipeline": [*SCHEDULED[:3], {"normalize": {"mean": 0.1, "std": 0.5}}]}
    with serving(scheduled) as server:
        remote = {"engine": "remote", "server": server.address}
        with gpupipe.load(scheduled, **remote) as loader:
            assert len(next(iter(loader))["image"])
        with pytest.raises(gpupipe.ServerError, match="is not the one that"):
            gpupipe.load(other, **remote)
