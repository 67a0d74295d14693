"""The probe of benchmarks/gil.py sees whether a thread holds the interpreter's lock."""

import ctypes
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def probe(tmp_path: Path) -> Any:
    import gil

    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return gil.load_probe(tmp_path)


def measure_share(probe: Any) -> float:
    """The share of the time in which the lock is held."""
    counts = probe(0.5)
    assert counts.looks > 10
    return float(counts.share)


def test_a_thread_that_holds_the_lock_is_seen(probe: Any) -> None:
    """It sleeps with the lock, so that it needs no core beside other load."""
    is_over = threading.Event()
    usleep = ctypes.PyDLL(None).usleep

    def hold() -> None:
        while not is_over.wait(0.001):
            usleep(20_000)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        share = measure_share(probe)
    finally:
        is_over.set()
        thread.join()
    assert share > 0.5


def test_a_thread_that_waits_does_not(probe: Any) -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert measure_share(probe) < 0.5
    finally:
        is_over.set()
        thread.join()


def test_a_moment_in_which_a_thread_waits_for_a_core_does_not_count() -> None:
    import gil

    quiet = [gil.Span(1000, held, 500, 1.0, 1.0) for held in (20, 21, 22, 23)]
    lock, error = gil.find_lock([*quiet, gil.Span(1000, 600, 500, 1.0, 1.0)])
    assert lock == pytest.approx(44.0)
    assert 4 < error < 12


def test_a_span_in_which_new_memory_is_cleared_counts_as_others() -> None:
    """The system clears it while the lock is free: fewer images, and a smaller share."""
    import gil

    usual = gil.Span(1000, 20, 500, 1.0, 1.0)
    assert gil.Span(3000, 20, 500, 3.0, 3.0).lock_us == pytest.approx(usual.lock_us)


def test_an_epoch_is_measured_in_spans_that_end_with_a_batch(probe: Any) -> None:
    import gil

    class Loader:
        """Batches of four images, without an end. The lock is held for about half of the time."""

        def __iter__(self) -> Iterator[dict[str, list[int]]]:
            while True:
                time.sleep(0.001)
                sum(range(50_000))
                yield {"image": [0] * 4}

    found = gil.measure(Loader(), probe, 0.2)
    assert len(found["spans"]) == 5
    assert found["images"] % 4 == 0
    assert found["images"] >= 20
    assert found["looks"] > 10
    assert found["lock_us"] > 0


def test_the_probe_ends_with_a_loader_that_fails(probe: Any) -> None:
    """Otherwise its thread would keep the process alive."""
    import gil

    class Loader:
        def __iter__(self) -> Iterator[dict[str, list[int]]]:
            raise OSError("the disk is gone")

    before = threading.active_count()
    with pytest.raises(OSError, match="gone"):
        gil.measure(Loader(), probe, 60.0)
    assert threading.active_count() == before


def test_the_goal_is_that_of_the_pipeline() -> None:
    import gil

    found = {
        "lock_us": 13.0,
        "lock_error_us": 0.1,
        "cpu_us": 500.0,
        "others_cores": 0.0,
        "model_rates": {8: 16_000.0},
    }
    assert "goal 12: FAILS" in gil.describe("imagenet_train", found)
    assert "goal 25: holds" in gil.describe("simclr", found)


@pytest.mark.parametrize(
    "batch",
    [{"label": [1, 2, 3], "image": [0, 0, 0]}, {"image": [0, 0, 0], "mask": []}, ([0] * 3, [])],
    ids=["dict", "without labels", "tuple"],
)
def test_images_are_counted_in_any_format(batch: Any) -> None:
    import gil

    assert gil.count(batch) == 3
