"""`gpupipe status ray` shows a trainer with its workers and Ray's own counters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.engines.ray import status_report
from gpupipe.engines.ray.trainer_status import read_statuses
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, ray_options
from helpers.ray_cluster import RayCluster, wait_until


def test_a_trainer_is_shown_with_the_object_store_and_without_grpcio_too(
    cluster: RayCluster, faces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_report, "_STORE_SECONDS", 0.0)
    with load(faces, PIPELINE, **ray_options(1)) as loader:
        next(iter(loader))
        wait_until(lambda: any(status["store"] for status in read_statuses()), "the object store")
        text = CliRunner().invoke(main, ["status", "ray"]).output
        assert "1 of 1 worker on 1 node" in text
        assert "0.00 GB spilled" in text
        with monkeypatch.context() as patch:  # Ray's counters are asked after the test too
            patch.setitem(sys.modules, "grpc", None)
            patch.delitem(sys.modules, "ray._private.grpc_utils")
            wait_until(lambda: not read_statuses()[0]["store"], "a status without counters")
            text = CliRunner().invoke(main, ["status", "ray"]).output
            assert "1 of 1 worker on 1 node" in text
            assert "spilled" not in text
