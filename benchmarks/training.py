"""What a loader costs a training loop besides its work: state_dict(), and the monitor.

    # about a minute, with nothing beside it; writes benchmarks/results/training.json
    python benchmarks/training.py
    python benchmarks/training.py --quick  # a check that it runs

state_dict() is called in mid-epoch of a set of a million samples. The monitor is what is added to a
step: measured over an iterator that takes no time, and against a step of 10 ms.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np
import round_statistics

_STATE_GOAL_MS, _MONITOR_GOAL, _STEP_SECONDS = 1.0, 0.005, 0.010
_SAMPLES = 1_000_000


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    calls, rounds = (200, 2) if arguments.quick else (5000, 7)
    states = [state_milliseconds(arguments.data, calls) for _ in range(rounds)]
    monitors = [monitor_seconds(calls) for _ in range(rounds)]
    share = statistics.median(monitors) / _STEP_SECONDS
    goals = [
        round_statistics.goal(
            "milliseconds of state_dict()", statistics.median(states), _STATE_GOAL_MS, at_most=True
        ),
        round_statistics.goal(
            "share of a 10 ms step that monitoring takes", share, _MONITOR_GOAL, at_most=True
        ),
    ]
    found = {
        "state_dict_ms": states,
        "monitor_us_per_step": [1e6 * s for s in monitors],
        "samples": _SAMPLES,
        "goals": goals,
    }
    path = harness.write("training", found, arguments)
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    return harness.options(__doc__).parse_args()


def state_milliseconds(data: Path, calls: int) -> float:
    """Of one call, the mean."""
    import gpupipe.loader
    from gpupipe import config as configs
    from gpupipe.dataset.index import build

    root = _one_image(data)
    checked = configs.read(
        {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode"]},
        device="cpu",
        engine="dataloader",
        workers=0,
    )
    index = build(str(root), ["one/0.png"] * _SAMPLES, np.zeros(_SAMPLES, np.int64), ("one",))
    with gpupipe.loader.create_loader(checked, index) as loader:
        iterator = iter(loader)
        next(iterator)
        return 1000 * _mean_seconds(loader.state_dict, calls)


def monitor_seconds(calls: int) -> float:
    """What a step takes longer with the monitor: steps of an iterator that takes no time, with and
    without it.
    """
    from gpupipe.monitor import Monitor

    class Instant:
        """Counts as a loader; its batches are there already."""

        waited = 0.0

        def __len__(self) -> int:
            return calls

        def __iter__(self) -> Any:
            return iter(range(calls))

    instant: Any = Instant()
    return _pass_seconds(Monitor(instant), calls) - _pass_seconds(instant, calls)


def _pass_seconds(batches: Any, calls: int) -> float:
    started = time.perf_counter()
    for _ in batches:
        pass
    return (time.perf_counter() - started) / calls


def _mean_seconds(act: Callable[[], Any], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        act()
    return (time.perf_counter() - started) / calls


def _one_image(data: Path) -> Path:
    from PIL import Image

    root = data / "one-image"
    (root / "one").mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 3)).save(root / "one" / "0.png")
    return root


if __name__ == "__main__":
    main()
