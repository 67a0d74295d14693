"""What passes over a loader say."""

import time
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.bench.measure import Measurement, Meter, Pass, describe_loader, image_of
from gpupipe.bench.memory import PeakMemory

PASSES = [Pass(100, 10, 1.0, 0.5), Pass(100, 10, 2.0, 0.7)]


def test_rates_and_costs_are_those_of_all_passes() -> None:
    found = Measurement(0.1, PASSES, mean_file_bytes=2e6)
    assert found.rates == [100, 50]
    assert found.mean == 75
    assert found.deviation == pytest.approx(35.36, abs=0.01)
    assert found.input_megabytes_a_second == pytest.approx(150)
    assert found.cpu_seconds_per_thousand == pytest.approx(6)
    assert Measurement(0.1, PASSES[:1]).deviation is None


@pytest.mark.parametrize(("ahead", "is_too_short"), [(0, False), (5, False), (6, True)])
def test_a_pass_of_fewer_than_twice_the_batches_made_ahead_is_too_short(
    ahead: int, is_too_short: bool
) -> None:
    found = Measurement(0.1, PASSES, batches_ahead=ahead)
    assert bool(found.too_short) is is_too_short
    if is_too_short:
        assert "10 batches, and 6 are made ahead: --batches 24" in found.too_short


def load_faces(faces: Path, **options: Any) -> gpupipe.Loader:
    pipeline = ["decode", {"resize": {"size": [8, 8]}}]
    config = {"data": {"source": "folder", "root": str(faces)}, "pipeline": pipeline}
    return gpupipe.load(config, **{"batch_size": 16, "device": "cpu", "engine": "cpu", **options})


def test_a_meter_warms_up_and_times_passes(faces: Path) -> None:
    ticks: list[tuple[str, int, int]] = []
    seen: list[Any] = []
    with PeakMemory() as memory, load_faces(faces) as loader:
        started = time.perf_counter()
        meter = Meter(
            loader,
            started,
            lambda name, images, total: ticks.append((name, images, total)),
            lambda _, batch: seen.append(image_of(batch).shape),
        )
        assert seen == [(16, 3, 8, 8)], "the first batch alone"
        assert {name for name, _, _ in ticks} == {"warm-up"}
        assert meter.epochs() * len(loader) >= 4 * loader.engine.traits.batches_ahead
        meter.run("1/1", 7)
        written = meter.finish(memory).as_json(loader)
    (timed,) = meter.result.passes
    assert timed.batches == 7
    assert timed.images == 16 * 6 + 12, "60 images an epoch"
    assert ticks[-1] == ("1/1", timed.images, 112)
    assert meter.result.peak_memory > 2**20
    assert meter.result.mean_file_bytes > 1000
    assert 0 < meter.result.first_batch_seconds <= time.perf_counter() - started
    assert written["what"] == describe_loader(loader)
    assert written["what"]["images"] == 60
    assert ("too_short" in written) is bool(meter.result.too_short)


def test_the_main_field_is_the_first(faces: Path) -> None:
    for form in ("dict", "tuple"):
        with load_faces(faces, format=form) as loader:
            assert image_of(next(iter(loader))).shape == (16, 3, 8, 8)
