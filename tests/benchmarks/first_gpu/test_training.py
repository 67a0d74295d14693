from typing import Any

import pytest


def test_calls_that_wait_are_counted_by_thread() -> None:
    from first_gpu import training

    def call(name: str, thread: int, category: str = "cuda_runtime") -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "tid": thread}

    events = [
        *[call("cudaStreamSynchronize", 7)] * 4,
        *[call("cudaEventSynchronize", 9)] * 2,
        *[call("cudaLaunchKernel", 7)] * 30,
        call("cudaStreamSynchronize", 7, "cpu_op"),
        {"ph": "M", "name": "process_name"},
    ]
    assert training.counted(events, 7, steps=2) == {
        "training": {"cudaStreamSynchronize": 2.0},
        "other threads": {"cudaEventSynchronize": 1.0},
        "events": 38,
        "runtime calls": 36,
    }


def test_waiting_is_what_the_loaders_steps_take_longer() -> None:
    from first_gpu import training

    kept = [{"step_seconds": 0.3}, {"step_seconds": 0.15}]
    assert training.waiting({"step_seconds": 0.2}, kept) == pytest.approx(0.25)
    assert training.waiting({"step_seconds": 0.1}, kept) == 0.0
