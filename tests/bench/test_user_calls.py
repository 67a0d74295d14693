import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpupipe.bench.user_calls import describe_calls, measure_call
from gpupipe.config import read
from gpupipe.loading.assembly import resolve
from gpupipe.runtime.ranks import cores


def lines(root: Path, *steps: Any, **loader: Any) -> list[str]:
    data = {"source": "folder", "root": str(root)}
    config = {"data": data, "pipeline": ["decode", *steps], "loader": {"device": "cpu", **loader}}
    return list(describe_calls(resolve(read(config))))


@pytest.mark.skipif(cores() < 2, reason="two threads share one core")
def test_the_lock_is_told_from_the_time() -> None:
    text = b"0" * 4_000_000

    def hold() -> None:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass

    def shares(function: Callable[[], object]) -> Iterator[float]:
        """Of several measurements: other processes may take the second core."""
        return (measure_call(function)[1] or 0.0 for _ in range(30))

    assert 0.01 <= measure_call(lambda: time.sleep(0.01))[0] < 1
    assert any(share < 0.5 for share in shares(lambda: time.sleep(0.01)))
    assert any(share > 0.5 for share in shares(hold))
    assert measure_call(lambda: hashlib.sha256(text))[0] > 0


def test_check_prints_the_cost_and_where_it_runs(tmp_path: Path) -> None:
    step = {"python": {"call": "helpers.user_functions:stamp"}}
    crop = {"center_crop": {"size": 32}}
    (line,) = lines(tmp_path, step, crop, engine="cpu")
    assert "helpers.user_functions:stamp takes " in line
    assert " us an image" in line
    assert "lock" in line or cores() < 2
    (line,) = lines(tmp_path, step, crop, engine="dali")
    assert "on one core" in line
    step["python"]["workers"] = 1  # type: ignore[assignment]
    (line,) = lines(tmp_path, step, crop, engine="cpu")
    assert "in 1 process of its own" in line
    assert lines(tmp_path, crop) == []
