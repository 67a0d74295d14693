from __future__ import annotations

import gc
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.function_workers import FunctionWorkers
from helpers import user_functions
from helpers.process_ends import ends

LIGHT = torch.arange(100, 244, dtype=torch.uint8).reshape(3, 6, 8)
DARK = torch.zeros(3, 6, 8, dtype=torch.uint8)
Open = Callable[..., FunctionWorkers]
pytestmark = pytest.mark.usefixtures("forked_in_module")


@pytest.fixture
def open_workers() -> Iterator[Open]:
    opened: list[FunctionWorkers] = []

    def open_(name: Any, count: int = 1, timeout: float = 60, **args: Any) -> FunctionWorkers:
        call = f"helpers.user_functions:{name}" if isinstance(name, str) else name
        opened.append(FunctionWorkers(call, args, None, count, timeout))
        return opened[-1]

    yield open_
    for workers in opened:
        workers.close()


def find_process(workers: FunctionWorkers) -> int:
    return int(workers.call(LIGHT, "image", 0)[0, 0, 0])


def test_the_function_runs_in_another_process_on_a_copy(open_workers: Open) -> None:
    workers = open_workers("stamp", strength=0.5)
    before = LIGHT.clone()
    first, again, other = (workers.call(LIGHT, "image", seed) for seed in (1, 1, 2**53 - 1))
    assert torch.equal(LIGHT, before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    expected = user_functions.stamp(LIGHT.clone(), torch.Generator().manual_seed(1))
    assert torch.equal(first, expected)


def test_the_seed_decides_draws_from_global_generators(open_workers: Open) -> None:
    two = open_workers("draws_of_all", count=2)
    drawn = [two.call(LIGHT, "image", seed) for seed in (5, 6)]
    assert not torch.equal(*drawn)
    with ThreadPoolExecutor(2) as threads:
        again = list(threads.map(lambda seed: two.call(LIGHT, "image", seed), [6, 5, 6, 5]))
    assert all(torch.equal(a, b) for a, b in zip(again, [*drawn[::-1], *drawn[::-1]], strict=True))


def test_all_processes_work_at_once_while_this_one_is_free(open_workers: Open) -> None:
    workers = open_workers("work", count=2)
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda seed: workers.call(LIGHT, "image", seed), range(8))
        processes = {int(image[0, 0, 0]) for image in made}
    assert len(processes) == 2


def test_a_function_that_keeps_its_image_changes_no_other(open_workers: Open) -> None:
    workers = open_workers("keep")
    first = workers.call(LIGHT, "image", 0)
    workers.call(DARK, "image", 0)
    assert torch.equal(first, LIGHT[:, 1:])


def test_a_class_is_constructed_in_the_process(open_workers: Open) -> None:
    before = user_functions.Divide.constructed
    assert torch.equal(open_workers("Divide", by=2).call(LIGHT, "left", 0), LIGHT // 2)
    assert user_functions.Divide.constructed == before


@pytest.fixture(scope="module")
def misbehaving(forked_in_module: None) -> Iterator[FunctionWorkers]:
    workers = FunctionWorkers("helpers.user_functions:misbehave", {}, None, 1, 1)
    yield workers
    workers.close()


def call(workers: FunctionWorkers, name: str) -> torch.Tensor:
    """Let `misbehave` call a function on a dark image."""
    names = [function.__name__ for function in user_functions.MISBEHAVIOURS]
    return workers.call(torch.full((3, 6, 8), names.index(name), dtype=torch.uint8), "image", 0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("refuse_dark", r"raised LookupError: it is dark at .*user_functions\.py:\d+"),
        ("hang_if_dark", r"not returned after 1 s at .*user_functions\.py:\d+: .*`timeout`"),
        ("exit_if_dark", r"ended its process \(status 3\)"),
        ("leave_if_dark", r"raised SystemExit: it is dark at .*user_functions\.py:\d+"),
        ("crash_if_dark", r"ended its process \(SIGSEGV\) at .*user_functions\.py:\d+"),
        ("fork_if_dark", r"forks at .*user_functions\.py:\d+: .*start a program"),
        ("to_array", r"returned a ndarray, but should return a tensor"),
    ],
)
def test_a_function_that_fails_is_named_with_its_line(
    misbehaving: FunctionWorkers, name: str, reason: str
) -> None:
    with pytest.raises(CallFailedError, match=reason) as caught:
        call(misbehaving, name)
    if line := re.search(r"user_functions\.py:(\d+)", str(caught.value)):
        text = Path(user_functions.__file__).read_text().splitlines()[int(line[1]) - 1]
        assert re.search("raise|sleep|while|kill|exit|fork", text)


def test_a_sample_that_a_function_refuses(misbehaving: FunctionWorkers) -> None:
    with pytest.raises(CallFailedError) as caught:
        call(misbehaving, "skip_if_dark")
    assert caught.value.is_a(SampleIncompatibleError)
    assert caught.value.message == "it is dark"


def test_it_goes_on_after_failures(misbehaving: FunctionWorkers) -> None:
    with pytest.raises(CallFailedError):
        call(misbehaving, "exit_if_dark")
    assert call(misbehaving, "clone").unique().numel() == 1


def test_a_function_may_print_and_start_programs(
    open_workers: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = open_workers("start_program")
    assert workers.call(LIGHT, "image", 0).dtype == torch.bfloat16
    workers.close()
    assert "of its program" in capfd.readouterr().out


def test_when_processes_end() -> None:
    workers = FunctionWorkers("helpers.user_functions:name_process", {}, None, 1, 60)
    first = find_process(workers)
    copy = pickle.loads(pickle.dumps(workers))
    assert find_process(copy) != first, "a copy has processes of its own"
    workers.close()
    assert ends(first)
    assert find_process(copy) != find_process(workers), "a call after close() starts another"
    second = find_process(workers)
    del workers
    gc.collect()
    assert ends(second), "the last reference is gone"
    copy.close()


SCRIPT = """
import os, threading, time, torch
from gpupipe.runtime.function_workers import FunctionWorkers
workers = FunctionWorkers("helpers.user_functions:hang_if_dark", {}, None, 1, 60)
workers.call(torch.full((3, 2, 2), 200), "image", 0)
print(workers._pool._processes[0].pid, flush=True)
threading.Thread(target=workers.call, args=(torch.zeros(3, 2, 2), "image", 0)).start()
time.sleep(0.5)
os.kill(os.getpid(), 9)
"""


def test_a_process_ends_with_its_parent_even_if_the_function_hangs() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=env
    ) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        parent.stdout.read()  # until both have ended, since the process has the pipe, too
    assert ends(process)
