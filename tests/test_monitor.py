"""Monitor, and its numbers in TensorBoard's event files and over HTTP for Prometheus."""

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpupipe
from gpupipe.monitor import Monitor, PrometheusExporter, TensorBoardExporter


@pytest.fixture
def monitor(faces: Path) -> Iterator[Monitor]:
    config = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": ["decode"],
        "loader": {"batch_size": 10, "device": "cpu", "engine": "cpu"},
    }
    with gpupipe.load(config) as loader:
        yield Monitor(loader)


def test_utilisation_is_what_waiting_leaves(monitor: Monitor) -> None:
    assert monitor.accelerator_utilisation == 0, "nothing was measured"
    monitor.steps, monitor.seconds, monitor.waited = 4, 2.0, 0.5
    assert monitor.metrics() == {
        "data/wait_share": 0.25,
        "data/accelerator_utilisation": 0.75,
        "data/wait_ms": 125.0,
        "data/step_ms": 500.0,
    }
    assert monitor.accelerator_utilisation == 0.75


def test_tensorboard_reads_what_was_written(monitor: Monitor, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with TensorBoardExporter(monitor, tmp_path / "runs", every=4) as exporter:
        steps = sum(1 for _ in monitor)
    exporter.close()
    assert steps == 6
    sum(1 for _ in monitor)  # after the end
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(monitor.metrics())
    points = events.Scalars("data/step_ms")
    assert [point.step for point in points] == [4, 6]
    waits = events.Scalars("data/wait_ms")
    shares = events.Scalars("data/wait_share")
    for point, wait, share in zip(points, waits, shares, strict=True):
        assert point.value > 0
        assert share.value == pytest.approx(wait.value / point.value, rel=1e-4)


def test_points_are_of_the_steps_since_the_last(monitor: Monitor, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))  # type: ignore[no-untyped-call]
    exporter = TensorBoardExporter(monitor, writer, every=1)
    for seconds, waited in ((2.0, 1.0), (6.0, 2.0)):  # the sums
        monitor.steps, monitor.seconds, monitor.waited = monitor.steps + 1, seconds, waited
        for function in monitor.on_step:
            function()
    exporter.close()
    writer.close()  # type: ignore[no-untyped-call]
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [point.value for point in events.Scalars("data/wait_share")] == [0.5, 0.25]
    assert [point.value for point in events.Scalars("data/step_ms")] == [2000, 4000]
    with pytest.raises(ValueError, match="every is 0"):
        TensorBoardExporter(monitor, tmp_path, every=0)


def test_prometheus_scrapes(monitor: Monitor) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    with PrometheusExporter(monitor) as exporter:
        assert sum(1 for _ in monitor) == 6
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics") as answer:
            text = answer.read().decode()
        samples = {
            sample.name: (sample.labels, sample.value, family.type)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        with pytest.raises(gpupipe.GpupipeError, match=f"127.0.0.1:{exporter.port}.*another port"):
            PrometheusExporter(monitor, exporter.port)
    exporter.close()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", exporter.port)), "the port is closed"
    prefix = "gpupipe_monitor_"
    assert samples == {
        f"{prefix}steps_total": ({"rank": "0"}, 6, "counter"),
        f"{prefix}step_seconds_total": ({"rank": "0"}, monitor.seconds, "counter"),
        f"{prefix}wait_seconds_total": ({"rank": "0"}, monitor.waited, "counter"),
        f"{prefix}wait_ratio": ({"rank": "0"}, monitor.share, "gauge"),
        f"{prefix}accelerator_utilisation_ratio": ({"rank": "0"}, 1 - monitor.share, "gauge"),
    }
